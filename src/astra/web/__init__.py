"""The questions for programs and pages: JSON over HTTP (`astra serve`) and MCP (`astra mcp`)."""
