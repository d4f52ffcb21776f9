"""Checks that no function of the product is longer than 80 lines and no file longer than 400.

A longer one may stay when a comment says why: "One function, for ..." at the head of the function (the
lines over it or the docstring), "One file, for ..." at the head of the file. Exits 1 and lists each
violation otherwise.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

FUNCTION_LINES = 80
FILE_LINES = 400
FOLDERS = ("include", "src", "python")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".in"}

# What holds braces without being code, in the order in which it hides the others.
HIDDEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z])'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""",
    re.DOTALL | re.MULTILINE,
)
CONTAINER = re.compile(
    r"(?:(?<![<,])(?<![<,] )\b(?:namespace|class|struct|union|enum)\b(?:\s*alignas\s*\([^()]*\))?|\bextern\b)[^()=]*$"
)


def cpp_functions(text: str) -> list[tuple[int, int]]:
    """First and last line of each function, lambdas at namespace scope included."""
    code = HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    line_of = lambda offset: code.count("\n", 0, offset) + 1  # noqa: E731
    found = []
    depth = 0  # braces inside what begins at `head`
    head = 0  # where the text of the declaration begins
    opened = 0  # where its last braces at depth 0 begin
    for brace in re.finditer(r"[{};]", code):
        sign, end = brace[0], brace.end()
        if sign == "{":
            if depth == 0 and CONTAINER.search(code[head : brace.start()]):
                head = end
            else:
                if depth == 0:
                    opened = brace.start()
                depth += 1
        elif sign == "}" and depth > 0:
            depth -= 1
            # Braces of an initialiser in a constructor or of a default argument end nothing.
            if depth == 0 and not re.match(r"\s*[,{)]", code[end : end + 200]):
                declared = code[head:opened]
                balanced = declared.count("(") == declared.count(")")
                if balanced and ("(" in declared or declared.rstrip().endswith("]")):
                    start = head + len(declared) - len(declared.lstrip())
                    found.append((line_of(start), line_of(end)))
                head = end
        elif depth == 0:
            head = end
    return found


def python_functions(text: str) -> list[tuple[int, int]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(n.lineno, n.end_lineno) for n in ast.walk(ast.parse(text)) if isinstance(n, kinds)]


def explained(lines: list[str], first: int) -> bool:
    """Whether the comment over line `first` (from 1), or what the function begins with, says why."""
    above = first - 1
    while above > 0 and re.match(r"\s*(//|#|@|template\b|\*|/\*)", lines[above - 1]):
        above -= 1
    return "One function, for " in " ".join(lines[above : first + 8])


def violations(name: str, text: str) -> list[str]:
    lines = text.splitlines()
    found = []
    if len(lines) > FILE_LINES and "One file, for " not in " ".join(lines[:10]):
        found.append(
            f"{name}: {len(lines)} lines, and its head does not say why (One file, for ...)"
        )
    for first, last in (python_functions if name.endswith(".py") else cpp_functions)(text):
        if last - first >= FUNCTION_LINES and not explained(lines, first):
            found.append(
                f"{name}:{first}: a function of {last - first + 1} lines, and its head does not say "
                "why (One function, for ...)"
            )
    return found


def self_test() -> None:
    cpp = """#include <x>  // {
#define BRACE {
namespace a {
struct S : B<int> {
  S(int x)
      : x_{x}, y_{"}"} {
    f('{');
  }
  int x_ = 0, y_{1};
};
enum class E : int { kA, kB };
const auto kTable = array({
    1,
});
template <class T>
T f(const char* s = R"(})", S n = {}) {
  auto g = [&] { return 1; };
  if (n) { /* } */
  }
}
const auto kLambda = [] {
};
extern "C" {
void c() {
}
}
}  // namespace a
"""
    assert cpp_functions(cpp) == [(5, 8), (15, 20), (21, 22), (24, 25)], cpp_functions(cpp)
    long = "void f() {\n" + "  g();\n" * 79 + "}\n"
    assert [v[:12] for v in violations("src/a.cpp", long)] == ["src/a.cpp:1:"]
    assert violations("src/a.cpp", long.replace("  g();\n", "", 1)) == []
    assert violations("src/a.cpp", "// One function, for it is one.\n" + long) == []
    python = "class A:\n    def f(self):\n" + "        g()\n" * 80
    assert [v[:10] for v in violations("src/a.py", python)] == ["src/a.py:2"]
    assert violations("src/a.py", python.replace("        g()\n", "", 1)) == []
    reason = '        """Does it. One function, for it is one."""\n'
    assert violations("src/a.py", python.replace("        g()\n", reason, 1)) == []
    assert [v[:9] for v in violations("src/a.h", "\n" * 401)] == ["src/a.h: "]
    assert violations("src/a.h", "// One file, for it is one.\n" + "\n" * 400) == []


if __name__ == "__main__":
    self_test()
    root = Path(__file__).resolve().parent.parent
    files = sorted(f for d in FOLDERS for f in (root / d).rglob("*") if f.suffix in SUFFIXES)
    problems = [
        problem
        for file in files
        for problem in violations(str(file.relative_to(root)), file.read_text(encoding="utf-8"))
    ]
    print("\n".join(problems) or "sizes: ok")
    sys.exit(bool(problems))
