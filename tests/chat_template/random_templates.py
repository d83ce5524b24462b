"""Makes random small templates: expressions over a fixed set of values, in tags with unusual white
space.

Most expressions work in Jinja. The others must fail here too, or count as more lenient (see
compare.py)."""

import random
import warnings

import reference

VARIABLES = {
    "text": "Hello, World", "empty": "", "blank": "  \t padded \n", "words": "a b  c d",
    "lines": "one\ntwo\r\n\nfour\n", "unicode": "Grüße ☕ Ωmega ñ 日本", "dashed": "x-y--z",
    "zero": 0, "one": 1, "seven": 7, "minus": -3, "half": 0.5, "tenth": 0.1, "big": 1e16,
    "small": 1e-7, "whole": 3.0, "yes": True, "no": False, "nothing": None,
    "numbers": [3, 1, 2, 10], "names": ["bob", "Alice", "carol"], "mixed": [1, "a", None, 2.5],
    "nested": [[1, 2], [3, [4]]], "hollow": [], "table": {"b": 1, "a": "x", "items": 3},
    "void": {}, "deep": {"k": {"l": [{"m": "n"}]}},
    "rows": [{"role": "user", "n": 2, "tag": "x"}, {"role": "tool", "n": 1},
             {"role": "user", "n": 3, "tag": None}],
}
METHODS = ["strip()", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()",
           "split()", "split(' ')", "split('l', 1)", "rsplit(None, 1)", "rsplit('o')",
           "split(none, 2)", "splitlines()", "splitlines(true)", "startswith('He')",
           "endswith(('d', 'n'))", "replace('l', 'LL')", "replace('', '-')",
           "replace('l', '_', 1)", "find('o')", "rfind('l')", "count('l')", "isdigit()",
           "isupper()", "islower()", "isspace()", "strip('H d')", "lstrip('\\n ')",
           "items()|list", "keys()|list", "values()|list", "get('a')", "get('zz', 5)", "index(1)",
           "count(1)", "removeprefix('He')", "removesuffix('ld')", "join(names)",
           "partition('l')", "rpartition('o')", "partition(', ')[2]", "format(one)", "items", "role"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "length", "count", "list", "first",
           "last", "string", "int", "float", "abs", "round", "round(1)", "round(2, 'floor')",
           "round(method='ceil')", "sort", "sort(reverse=true)", "sort(attribute='n')", "unique|list",
           "reverse|list", "join", "join(', ')", "join('-', attribute='role')", "tojson",
           "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
           "tojson(separators=(',', ':'))", "default('D')", "default('D', true)", "d(seven)",
           "replace('l', 'r')", "replace('o', '0', 1)", "items|list", "dictsort", "indent",
           "indent(2, true)", "indent(width=3, blank=true)", "min", "max", "sum",
           "sum(attribute='n')", "map('upper')|list", "map(attribute='role')|list",
           "map(attribute='tag', default='none')|list", "map('int')|join(',')",
           "select('string')|list", "reject('none')|list", "select|list",
           "selectattr('tag')|list", "selectattr('role', 'equalto', 'user')|list",
           "rejectattr('n', '>', 1)|list", "selectattr('tag', 'defined')|map(attribute='n')|list",
           "groupby('role')|list", "groupby('n')|map(attribute='list')|list", "batch(2)|list",
           "batch(2, 'x')|list", "slice(3)|list", "slice(2, 'x')|list",
           "safe", "format(one, 'x')", "attr('upper')", "int(9)", "int(base=16)"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number",
         "integer", "float", "boolean", "true", "false", "odd", "even", "divisibleby(3)",
         "eq('x')", "equalto one", "in numbers", "in text", "upper", "lower", "callable",
         "ge 2", "lt(3)", "ne none", "sameas none"]
SUBSCRIPTS = ["[0]", "[-1]", "[7]", "['a']", "['items']", "[1:]", "[:-1]", "[::-1]", "[::2]",
              "[-2:]", "[5:1:-2]", "['role']", ".role", ".a", ".b", ".k.l[0].m", ".zz", "[one]",
              "[zero:seven]", ".0", "[-9:2]", "[:9]", "[none:]", "[2.0]", "[true]"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in",
          "not in", "and", "or"]
LITERALS = ["'lit'", '"x\\n\\ty\\u00e9\\x41"', "''", "1", "0", "12", "2.5", "1e3", "true", "none",
            "[1, 'b']", "(1, 2)", "{'a': 1, 'c': [2]}", "'%s and %d' % (text, 7)", "'a' 'b'",
            "[]", "()", "'%5.2f|%-4s|%03d' % (half, one, seven)", "undefined_name", "fresh", "newer"]


def works(expression):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference.render({"template": "{{ " + expression + " }}", "variables": VARIABLES})
        return True
    except Exception:  # Python may raise any error
        return False


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def expression(self, depth):
        """Returns an expression that nearly always works."""
        for _ in range(10):
            expression = self.any_expression(depth)
            if works(expression) or self.random.random() < 0.02:
                return expression
        return "text"

    def any_expression(self, depth):
        pick = self.random.random()
        if depth <= 0 or pick < 0.2:
            return self.random.choice(list(VARIABLES) + LITERALS)
        inner = self.expression(depth - 1)
        if pick < 0.4:
            return f"{inner} | {self.random.choice(FILTERS)}"
        if pick < 0.5:
            return f"({inner}).{self.random.choice(METHODS)}"
        if pick < 0.62:
            return f"({inner}){self.random.choice(SUBSCRIPTS)}"
        if pick < 0.7:
            negated = self.random.choice(["is", "is not"])
            return f"{inner} {negated} {self.random.choice(TESTS)}"
        if pick < 0.9:
            return f"({inner} {self.random.choice(BINARY)} {self.expression(depth - 1)})"
        if pick < 0.94:
            return f"not {inner}"
        if pick < 0.96:
            return f"-{inner}"
        return f"({inner} if {self.expression(depth - 1)} else {self.expression(depth - 1)})"

    def space(self):
        return self.random.choice(["", " ", "\n", "\n  ", "  \n", "\t", "text", "a\n  "])

    def tag(self, inside):
        left = self.random.choice(["{%", "{%", "{%-", "{%+"])
        right = self.random.choice(["%}", "%}", "-%}", "+%}"])
        return f"{self.space()}{left} {inside} {right}{self.space()}"

    def shown(self, expression):
        left, right = self.random.choice(["{{", "{{-"]), self.random.choice(["}}", "-}}"])
        return f"{self.space()}{left} {expression} {right}{self.space()}"

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 3)))

    def statement(self, depth):
        pick = self.random.random()
        if depth <= 0 or pick < 0.4:
            return self.shown(self.expression(2))
        if pick < 0.52:
            return (self.tag(f"if {self.expression(2)}") + self.body(depth - 1) +
                    self.tag(f"elif {self.expression(1)}") + self.body(depth - 1) +
                    self.tag("else") + self.body(depth - 1) + self.tag("endif"))
        if pick < 0.7:
            name = self.random.choice(["item", "text", "k, v"])
            over = self.random.choice(["numbers", "names", "rows", "table.items()", "words",
                                       "hollow", "range(3)", "numbers[::-1]", "void"])
            test = self.random.choice(["", "", " if item", " if loop is undefined"])
            loop = self.random.choice(["index", "index0", "first", "last", "length", "revindex",
                                       "revindex0", "previtem", "nextitem", "depth",
                                       "cycle('o', 'e')"])
            jump = self.random.choice(["", "", self.tag("if loop.index == 2") + self.tag(
                self.random.choice(["break", "continue"])) + self.tag("endif")])
            return (self.tag(f"for {name} in {over}{test}") + self.shown(f"loop.{loop}") + jump +
                    self.body(depth - 1) + self.tag("else") + self.body(0) + self.tag("endfor"))
        if pick < 0.78:
            return self.tag(f"set {self.random.choice(['fresh', 'newer'])} = "
                            f"{self.expression(2)}")
        if pick < 0.82:
            return (self.tag("set block") + self.body(depth - 1) + self.tag("endset") +
                    self.shown("block"))
        if pick < 0.86:
            return (self.tag("set ns = namespace(n=0, t='')") + self.tag("for i in numbers") +
                    self.tag("set ns.n = ns.n + i") + self.tag("set ns.t = ns.t ~ i") +
                    self.tag("endfor") + self.shown("ns.n") + self.shown("ns.t"))
        if pick < 0.9:
            call = self.random.choice(["f(1)", "f(text, b=2)", "f(b=names)", "f(*numbers[:2])",
                                       "f(a=1, **{'b': 3})", "f()", "f(1, 2, 3)"])
            return (self.tag("macro f(a, b='dee')") + self.shown("a") + self.shown("b") +
                    self.body(0) + self.tag("endmacro") + self.shown(call))
        if pick < 0.92:
            return (self.tag("macro g(x)") + "<" + self.shown("caller(x)") + ">" +
                    self.tag("endmacro") + self.tag("call(y) g(seven)") + self.shown("y") +
                    self.tag("endcall"))
        if pick < 0.94:
            return (self.tag("filter upper") + self.body(depth - 1) + self.tag("endfilter"))
        if pick < 0.96:
            return (self.tag("with one = 5, w = text") + self.body(depth - 1) +
                    self.shown("w") + self.tag("endwith"))
        if pick < 0.98:
            return f"{self.space()}{{#{self.random.choice(['', '-'])} note {{{{ x }}}} #}}{self.space()}"
        return self.tag("raw") + "{{ raw }} {% x %}" + self.tag("endraw")

    def template(self):
        return self.body(3)


def cases(count, seed):
    for i in range(count):
        yield {"template": Maker(f"{seed}-{i}").template(), "messages": [], "variables": VARIABLES}
