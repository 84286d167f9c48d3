"""What Megatron-LM accepts (megatron-core 0.19.2), checked against its own code in `make verify`.

Layers: parser = the command line and `validate_args`; config = `TransformerConfig`,
`OptimizerConfig`; layout = `PipelineParallelLayerLayout`; runtime = process groups, model build
and schedules.
"""

from astra.strategy.rules.megatron_config import CONFIGURATION
from astra.strategy.rules.megatron_parser import PARSER
from astra.strategy.rules.megatron_runtime import LAYOUTS, RUNTIME
from astra.strategy.rules.our_rules import same_for_all_stages

RULES = (
    *PARSER,
    *CONFIGURATION,
    *LAYOUTS,
    *RUNTIME,
    *same_for_all_stages("Megatron-LM's command line"),
)
