"""The table of docs/algorithms.md, which test_cost.py compares: `python tools/algorithms.py` writes it.

The formulas stand here; the test evaluates them and compares the results with what the engine says (_C.comm_cost), which
it compares with what groups count while they run."""

from pathlib import Path

FILE = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- written by tools/algorithms.py: begin -->\n", "<!-- written by tools/algorithms.py: end -->\n"

NONE = ("0", "0")
PARTS = ("n*(W-1)/W", "n*(W-1)/W")
TWICE = ("2*n*(W-1)/W", "2*n*(W-1)/W")
ALL = ("n*(W-1)", "n*(W-1)")
# (operation, algorithm, which rank, steps, (written, read) in memory, (sent, received) in messages, more of the question)
# None: the algorithm does not run there. The root is rank 0.
ROWS = [
    ("all_reduce", "gather_sum", "", "P", ("n", "n*(W-1)"), ALL, {"algo": "gather_sum"}),
    ("all_reduce", "slot_sum", "", "P+1", TWICE, None, {"algo": "slot_sum"}),
    ("all_reduce", "scatter_gather", "", "P+1", ("n", "2*n*(W-1)/W"), TWICE, {"algo": "scatter_gather"}),
    ("all_reduce", "hierarchical", "", "3*P", ("n+2*n/L", "2*n*(L-1)/L"), ("n/L*(W/L-1)", "n/L*(W/L-1)"),
     {"algo": "hierarchical"}),
    ("all_reduce", "direct_sum", "", "2", PARTS, None, {"direct": True}),
    ("all_reduce", "ring", "", "2*(W-1)*P", ("n+2*n*(W-1)/W", "2*n*(W-1)/W"), TWICE, {"algo": "ring", "fast": True}),
    ("all_reduce", "halving", "", "2*log2(W)*P", ("n+2*n*(W-1)/W", "2*n*(W-1)/W"), TWICE,
     {"algo": "halving", "fast": True}),
    ("reduce", "gather_sum", "root", "P", ("0", "n*(W-1)"), ("0", "n*(W-1)"), {"algo": "gather_sum"}),
    ("reduce", "gather_sum", "others", "P", ("n", "0"), ("n", "0"), {"algo": "gather_sum"}),
    ("reduce", "slot_sum", "root", "P+1", ("n*(W-1)/W", "2*n*(W-1)/W"), None, {"algo": "slot_sum"}),
    ("reduce", "slot_sum", "others", "P+1", ("n", "n*(W-1)/W"), None, {"algo": "slot_sum"}),
    ("reduce", "scatter_gather", "root", "P+1", None, ("n*(W-1)/W", "2*n*(W-1)/W"), {"algo": "scatter_gather"}),
    ("reduce", "scatter_gather", "others", "P+1", None, ("n", "n*(W-1)/W"), {"algo": "scatter_gather"}),
    ("reduce_scatter", "reduce_scatter", "", "P", PARTS, PARTS, {}),
    ("reduce_scatter", "direct_reduce_scatter", "", "2", ("0", "n*(W-1)/W"), None, {"direct": True}),
    ("broadcast", "broadcast", "root", "P", ("n", "0"), ("n*(W-1)", "0"), {}),
    ("broadcast", "broadcast", "others", "P", ("0", "n"), ("0", "n"), {}),
    ("broadcast", "direct_broadcast", "root", "2", NONE, None, {"direct": True}),
    ("broadcast", "direct_broadcast", "others", "2", ("0", "n"), None, {"direct": True}),
    ("all_gather", "all_gather", "", "P", ("n", "n*(W-1)"), ALL, {}),
    ("gather", "all_gather", "root", "P", ("0", "n*(W-1)"), ("0", "n*(W-1)"), {}),
    ("gather", "all_gather", "others", "P", ("n", "0"), ("n", "0"), {}),
    ("scatter", "scatter", "root", "P", ("n*(W-1)/W", "0"), ("n*(W-1)/W", "0"), {}),
    ("scatter", "scatter", "others", "P", ("0", "n/W"), ("0", "n/W"), {}),
    ("all_to_all", "all_to_all", "", "P", PARTS, PARTS, {}),
    ("barrier", "barrier", "", "1", NONE, NONE, {}),
]  # fmt: skip
IN_PARTS = ("reduce_scatter", "scatter", "all_to_all")  # n is the whole input of W parts


def pair(formulas):
    if formulas is None:
        return "-", "-"
    return tuple(text.replace("*", " ").replace("  ", " ") for text in formulas)


def table():
    rows = ["| operation | algorithm | steps | written | read | sent | received |", "|---|---|---|---|---|---|---|"]
    for op, algorithm, who, steps, memory, messages, _ in ROWS:
        name = f"{op}, {who}" if who else op
        cells = (name, algorithm, steps.replace("*", " "), *pair(memory), *pair(messages))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def written(text):
    """docs/algorithms.md with the table as it has to be."""
    return text[: text.index(BEGIN) + len(BEGIN)] + table() + text[text.index(END) :]


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text()))
