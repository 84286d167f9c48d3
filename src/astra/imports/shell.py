"""The commands of a shell script as text: variables and arrays filled in, nothing executed.

What only a shell could know (`$(...)`, backticks, variables nobody sets) stays as it is written
and is listed. Branches and loops are read once, straight through, and that is said.
"""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from astra.files import read_text
from astra.imports.arithmetic import evaluated

OPENS = ("if", "while", "until", "for", "case", "select")
CLOSES = ("fi", "done", "esac")
KEYWORDS = (*OPENS, *CLOSES, "then", "else", "elif", "do", "{", "}", "!", "time", "in")
SETS = ("export", "declare", "typeset", "local", "readonly")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^]]*\])?(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
MAX_DEPTH = 50  # braces and parentheses in each other; more is no launch script

Value = str | list[str]


@dataclass(slots=True)
class Script:
    """What a script says."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)
    scheduler: dict[str, str] = field(default_factory=dict)  # #SBATCH options
    unknown: list[str] = field(default_factory=list)  # what only a shell could fill in
    branched: list[str] = field(default_factory=list)  # set in a branch or a loop
    folder: Path | None = None  # where files that it sources are looked for
    sourced: list[str] = field(default_factory=list)  # files that were read in their place
    absent: list[str] = field(default_factory=list)  # and those that are not there


def read_script(text: str, folder: Path | None = None) -> Script:
    """The commands in the order they are written, with their variables filled in.

    Files that it sources are read in their place, where they lie in `folder`.
    """
    found = Script(scheduler=_scheduler(text), folder=folder)
    for name, words in _scheduler_variables(found.scheduler).items():
        found.variables[name] = words
    _Reader(_joined(text), found).run()
    return found


def _joined(text: str) -> str:
    """Continued lines as one."""
    return text.replace("\r\n", "\n").replace("\\\n", " ")


def _scheduler(text: str) -> dict[str, str]:
    """`#SBATCH --nodes=4` and `#SBATCH -N 4`."""
    found: dict[str, str] = {}
    for line in SBATCH.findall(text):
        words = line.split("#")[0].split()
        if words and words[0].startswith("-"):
            name, _, value = words[0].partition("=")
            found[name.lstrip("-")] = value or (words[1] if len(words) > 1 else "")
    return found


def _scheduler_variables(scheduler: dict[str, str]) -> dict[str, str]:
    """What SLURM will set for the job."""
    nodes = scheduler.get("nodes") or scheduler.get("N")
    tasks = scheduler.get("ntasks-per-node")
    found: dict[str, str] = {}
    if nodes and nodes.isdigit():
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes)
    if tasks and tasks.isdigit():
        found |= {"SLURM_NTASKS_PER_NODE": tasks, "SLURM_TASKS_PER_NODE": tasks}
    if "SLURM_NNODES" in found and "SLURM_NTASKS_PER_NODE" in found:
        found["SLURM_NTASKS"] = str(
            int(found["SLURM_NNODES"]) * int(found["SLURM_NTASKS_PER_NODE"])
        )
    return found


class _Reader:
    """One pass over the text, a statement at a time."""

    def __init__(self, text: str, found: Script) -> None:
        self.text, self.at, self.found = text, 0, found
        self.depth = 0  # of branches and loops
        self.maybe = False  # behind && or ||
        self.here: list[str] = []  # ends of heredocs that begin on the next line

    def run(self) -> None:
        while self.at < len(self.text):
            self._statement()

    def _statement(self) -> None:
        words: list[str] = []
        first, start = True, self.at  # assignments come before the command
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t":
                self.at += 1
            elif letter == "#":
                self._skip_line()
            elif letter in "\n;&|()":
                twice = self.text[self.at : self.at + 2] in ("&&", "||")
                blank = not self.text[start : self.at].strip()
                self.maybe = twice or (self.maybe and blank and letter == "\n")
                self.at += 1 + twice
                if letter == "\n":
                    self._skip_heredocs()
                break
            elif letter in "<>":
                self._redirect()
            elif first and (match := ASSIGNMENT.match(self.text, self.at)):
                self.at = match.end()
                self._assign(match[1], bool(match[2]))
            else:
                new = self._word()
                if first and new and new[0] in KEYWORDS:
                    self.depth += (new[0] in OPENS) - (new[0] in CLOSES)
                    if new[0] == "for":
                        self._loop()
                elif first and new and new[0] in SETS:
                    self._skip_options()
                elif first and len(new) == 1 and (match := ASSIGNMENT.match(new[0])):
                    self._set(match[1], new[0][match.end() :], bool(match[2]))  # export "A=1"
                elif not (
                    new and new[0].isdigit() and self.text[self.at : self.at + 1] in ("<", ">")
                ):
                    first = False
                    words += new
        if len(words) > 1 and words[0] in ("source", "."):
            self._source(words[1])
        elif words:
            self.found.commands.append(words)

    def _source(self, name: str) -> None:
        """Another script in this one's place.

        A folder that only the shell knows is taken for the script's own; one from the root is that
        of another machine.
        """
        folder = self.found.folder
        bare = name.rpartition("/")[2] if re.search(r"[$`~]", name) else name
        if bare in self.found.sourced:
            return
        known = folder is not None and not bare.startswith("/")
        path = folder / bare if folder is not None and known else None
        if path is None or not path.is_file() or len(self.found.sourced) >= MAX_DEPTH:
            self.found.absent.append(name)
            return
        self.found.sourced.append(bare)
        inner = _Reader(_joined(read_text(path)), self.found)
        inner.depth, inner.maybe = self.depth, self.maybe
        inner.run()

    def _loop(self) -> None:
        """`for NAME in words`: the last of them, as of all that a loop sets."""
        match = re.compile(r"[ \t]+([A-Za-z_]\w*)[ \t]+in[ \t]+").match(self.text, self.at)
        if match is None:
            return
        self.at, words = match.end(), []
        while self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>#":
            if self.text[self.at] in " \t":
                self.at += 1
            else:
                words += self._word()
        if words:
            self._set(match[1], words[-1], more=False)

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _skip_options(self) -> None:
        """`declare -a NAME`."""
        while match := re.compile(r"[ \t]+-\w+").match(self.text, self.at):
            self.at = match.end()

    def _redirect(self) -> None:
        """Skip `> file` and `<<EOF`, of which the text is no command."""
        match = re.compile(r"<<-?\s*(['\"]?)(\w+)\1|[<>]+&?[-\d]*").match(self.text, self.at)
        if match is None:
            self.at += 1
            return
        self.at = match.end()
        if match[2]:
            self.here.append(match[2])
            return
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>#":
            self._word()

    def _skip_heredocs(self) -> None:
        for end in self.here:
            match = re.compile(rf"^\s*{re.escape(end)}\s*$", re.MULTILINE).search(
                self.text, self.at
            )
            self.at = match.end() if match else len(self.text)
        self.here = []

    def _assign(self, name: str, more: bool) -> None:
        if self.at < len(self.text) and self.text[self.at] == "(":
            self.at += 1
            value: Value = self._array()
        else:
            # Not split: a value is one word, whatever it holds.
            value = " ".join(self._word(split=False))
        self._set(name, value, more)

    def _set(self, name: str, value: Value, more: bool) -> None:
        before = self.found.variables.get(name)
        if more and before is not None:
            both = (before, value)
            if isinstance(before, list) or isinstance(value, list):
                value = [
                    word for part in both for word in (part if isinstance(part, list) else [part])
                ]
            else:
                value = before + value
        if (self.depth or self.maybe) and before != value and name not in self.found.branched:
            self.found.branched.append(name)
        self.found.variables[name] = value

    def _array(self) -> list[str]:
        words: list[str] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t\n":
                self.at += 1
            elif letter == "#":
                self._skip_line()
            elif letter == ")":
                self.at += 1
                break
            else:
                start = self.at
                words += self._word()
                self.at += self.at == start  # a letter that no word begins with
        return words

    def _word(self, split: bool = True) -> list[str]:
        """One word of the text: several, or none, where a variable holds several."""
        words, open_word = [""], False
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;&|()<>":
            letter = self.text[self.at]
            if letter == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                words[-1] += self.text[self.at + 1 : end]
                self.at, open_word = end + 1, True
            elif letter == '"':
                open_word = self._quoted(words) or open_word
            elif letter == "\\":
                words[-1] += self.text[self.at + 1 : self.at + 2]
                self.at, open_word = self.at + 2, True
            elif letter in "$`":
                parts = self._expanded()
                pieces = [
                    piece
                    for part in parts
                    for piece in (part.split() if split and part[:1] not in "$`" else [part])
                ]
                if pieces:
                    words[-1] += pieces[0]
                    words += pieces[1:]
                    open_word = True
            else:
                words[-1] += letter
                self.at, open_word = self.at + 1, True
        return words if open_word else []

    def _quoted(self, words: list[str]) -> bool:
        """Between double quotes: `"${A[@]}"` is as many words as it has, all else is one.

        Whether there is a word at all.
        """
        self.at += 1
        start, none = self.at, False
        while self.at < len(self.text) and self.text[self.at] != '"':
            letter = self.text[self.at]
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                words[-1] += self.text[self.at + 1]
                self.at += 2
            elif letter in "$`":
                parts = self._expanded()
                if parts:
                    words[-1] += parts[0]
                    words += parts[1:]
                none = not parts and self.text[start] == "$"
            else:
                words[-1] += letter
                self.at += 1
        self.at += 1
        return not none or bool(words[-1])

    def _expanded(self) -> list[str]:
        """What stands for `$...` here: as many words as an array has, else one."""
        start = self.at
        if self.text[start] == "`":
            end = self.text.find("`", start + 1)
            return self._as_text(start, len(self.text) if end < 0 else end + 1)
        if self.text.startswith("$((", start):
            end = _closing(self.text, start + 1, "(", ")")
            value = self._sum(self.text[start + 3 : end - 2])
            if value is None:
                return self._as_text(start, end)
            self.at = end
            return [value]
        if self.text.startswith("$(", start):
            return self._as_text(start, _closing(self.text, start + 1, "(", ")"))
        if self.text.startswith("${", start):
            end = _closing(self.text, start + 1, "{", "}")
            return self._braced(start, end)
        match = NAME.match(self.text, start + 1)
        if match is None:
            self.at = start + 1
            return ["$"]
        self.at = match.end()
        return self._value(match[0], self.text[start : self.at])

    def _as_text(self, start: int, end: int) -> list[str]:
        """What only a shell could work out: kept as it is written, and listed."""
        self.at = end
        text = self.text[start:end]
        if text not in self.found.unknown:
            self.found.unknown.append(text)
        return [text]

    def _braced(self, start: int, end: int) -> list[str]:
        """`${A}`, `${A[@]}`, `${A:-else}` and their kin."""
        inner = self.text[start + 2 : end - 1]
        match = NAME.match(inner)
        rest = inner[match.end() :] if match else ""
        if match is None or rest.startswith(("#", "%", "/", "^", ",")):
            return self._as_text(start, end)
        self.at = end
        plain = re.sub(r"^\[[@*]\]", "", rest)
        default = re.match(r":?[-=?]", plain)
        if not plain or (default and self._known(match[0])):
            return self._value(match[0], self.text[start:end])
        if default and plain[default.end() - 1] in "-=":
            script = _Reader(plain[default.end() :], self.found)
            words = script._word(split=False) or [""]
            if plain[default.end() - 1] == "=":
                self._set(match[0], words[0], more=False)  # `: "${A:=4}"` sets what is not set
            return words
        return self._as_text(start, end)

    def _known(self, name: str) -> bool:
        return bool(self.found.variables.get(name))

    def _value(self, name: str, text: str) -> list[str]:
        value = self.found.variables.get(name)
        if value is None:
            if name in ("@", "*"):  # what the caller adds
                return []
            return self._as_text(self.at - len(text), self.at)
        return value if isinstance(value, list) else [value]

    def _sum(self, text: str) -> str | None:
        """Whole-number arithmetic on known variables, by our own hand."""

        def number(match: re.Match[str]) -> str:
            value = self.found.variables.get(match[1])
            return value if isinstance(value, str) else match[0]

        filled = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", number, text)
        try:
            return str(evaluated(ast.parse(filled.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None


def _closing(text: str, start: int, opens: str, closes: str) -> int:
    """Where the bracket at `start` closes, one past it."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opens) - (text[at] == closes)
        if depth == 0:
            return at + 1
        if depth > MAX_DEPTH:
            break
    return len(text)
