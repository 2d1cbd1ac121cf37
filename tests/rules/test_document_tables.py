"""Tables in documents are what the programs write that made them."""

import dtensor_ops
import environment


def test_environment_lists_every_variable():
    listed = {name for table in environment.OTHERS.values() for name in table}
    found = environment.read()
    assert len(found) > 50 and len(environment.flags()) > 25
    assert not {name: path for name, path in found.items() if name not in listed}, "describe it in tools/environment.py"
    assert not listed - set(found), "nobody reads it: tools/environment.py describes it"
    assert environment.FILE.read_text() == environment.page(), "python tools/environment.py writes it"


def test_every_op_on_dtensors_is_listed():
    text = dtensor_ops.FILE.read_text()
    changed = set(dtensor_ops.page(text).splitlines()) ^ set(text.splitlines())
    names = [set(line.split("`")[1::2]) for line in changed]
    said = "python tools/dtensor_ops.py writes it; it changes"
    assert dtensor_ops.page(text) == text, (said, sorted(set.union(*names) - set.intersection(*names)))
