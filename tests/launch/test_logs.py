"""The logs of many ranks: progress bars are states, equal lines are one, and nothing is lost."""

import fcntl
import functools
import os
import pty
import random
import re
import select
import struct
import termios
import textwrap
import time

import pytest

from lib.processes import environment, launch, start, terminal
from pydist._launch import fold, options
from pydist._launch.screen import LINE_MAX, Screen
from pydist._launch.status import cut, status_rows
from pydist._launch.stream import Stream

LONG = "FULL_LONG" in os.environ
folded = functools.partial(launch, "--fold=auto")
TOGETHER = "from pydist import distributed\ndistributed.barrier()\n"


class Paper:
    """A sink that keeps what was written."""

    terminal = closed = False

    def __init__(self):
        self.data, self.folds, self.draws = b"", [], 0

    def lines(self, data):
        self.data += data

    def redraw(self):
        self.draws += 1


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    for module in ("fold", "stream"):
        monkeypatch.setattr(f"pydist._launch.{module}.monotonic", lambda: now[0])
    return now


# The screen of one rank.


@pytest.mark.parametrize("data, expected", [
    (b"a\nb\n\nc", b"a\nb\n\nc\n"),
    (b"\r 0%\r 50%\r100%", b"100%\n"),
    (b"\r 50%\r100%\nnext\nlast\n", b"100%\nnext\nlast\n"),
    (b"crlf\r\nagain\r\n", b"crlf\nagain\n"),
    (b"\r 50%\r     \rdone\n\n", b"done\n\n"),  # blanks erase
    (b"\r 50%\r     \r", b""),
    (b"\r 50%\r\x1b[Kdone\nx\n", b"done\nx\n"),
    (b"\x1b[31mred\x1b[0m\x1b[5C\x1b]0;title\x07 text\x1b7\x1b(B\n", b"\x1b[31mred\x1b[0m text\n"),
    (b"1\n2\n3" + b"\x1b[A" * 50 + b"\x1b[99999999A\rtop", b"1\n2\ntop\n3\n"),
    # two bars, as tqdm moves between them; the inner one is erased at its end
    (b"\router 0/2\n\rinner 1/3\x1b[A\n\rinner 3/3\x1b[A\router 1/2\n\r         \x1b[A\router 2/2\n", b"outer 2/2\n"),
    # two rows, as rich draws them, with a line printed above
    (b"\x1b[?25la 0%\nb 0%\r\x1b[2K\x1b[1A\x1b[2Ka 50%\nb 50%\r\x1b[2K\x1b[1A\x1b[2Khello\na 99%\nb 99%"
     b"\r\x1b[2K\x1b[1A\x1b[2Ka 100%\nb 100%\n\x1b[?25hend\n", b"hello\na 100%\nb 100%\nend\n"),
])  # fmt: skip
def test_what_a_screen_makes_of_bytes(data, expected):
    for size in (len(data), 1, 2, 3, 7):
        screen, lines = Screen(), b""
        for at in range(0, len(data), size):
            lines += screen.feed(data[at : at + size])
        assert lines + screen.end() == expected, size


def test_what_a_screen_shows():
    screen = Screen(b"begun")
    assert screen.feed(b" \r 10%|\x1b[32m#\x1b[0m") == b"" and screen.state == [b" 10%|\x1b[32m#\x1b[0m"]
    screen.feed(b"\r 20%")
    assert screen.state == [b" 20%"] and not screen.is_resting
    screen.feed(b"\n")  # a second bar may come, and the cursor go up again
    assert screen.state == [b" 20%"] and screen.is_resting
    assert screen.settle() == b" 20%\n" and screen.state == [] and screen.plain == b""


def test_hostile_bytes_do_no_harm():
    draw = random.Random(1)
    alphabet = [b"\r", b"\n", b"\x1b", b"\x1b[", b"\x1b[A", b"\x1b[2K", b"\x1b[J", b"\x1b[?25l", b"\x1b[?25h", b"\x1b[31m",
                b"\x1b]8;;", b"\x07", b"9" * 40, b"text", b" ", b"\xff\x00\xc3", b"\xe2\x96\x88"]  # fmt: skip
    for _ in range(2000 if LONG else 200):
        screen = Screen()
        for _ in range(30):
            lines = screen.feed(b"".join(draw.choices(alphabet, k=draw.randrange(12))))
            assert b"\r" not in lines and (not lines or lines.endswith(b"\n")) and len(screen.rows) <= 9
            assert 0 <= screen.cursor < len(screen.rows)
        assert b"\r" not in screen.end()
    screen = Screen()
    lines = b"".join(screen.feed(b"\r" + b"y" * (1 << 16)) for _ in range(3))
    assert lines == b"" and len(screen.rows) == 1
    long = b"".join(screen.feed(b"y" * (1 << 16)) for _ in range(160)) + screen.end()
    assert max(map(len, long.split(b"\n"))) <= LINE_MAX + (1 << 17) and long.count(b"y") == (160 << 16) + (1 << 16)


# Folding, alone.


def folds(ranks, **more):
    paper = Paper()
    one = fold.Fold(paper, fold.Prefix(), **more)
    return paper, one, [one.lane(rank) for rank in range(ranks)]


def test_equal_lines_are_one_at_once(clock):
    paper, one, lanes = folds(3)
    for lane in lanes:
        lane.lines(b"a\nb\n" + b"c\n" * (lane.rank == 1))
        one.run(clock[0])
    assert paper.data == b"[0-2] a\n[0-2] b\n"
    clock[0] += 0.14
    one.run(clock[0])
    assert b"c" not in paper.data and one.next() == pytest.approx(clock[0] + 0.01)
    clock[0] += 0.02
    one.run(clock[0])
    assert paper.data.endswith(b"b\n[1] c\n") and one.next() == fold.NEVER


def test_own_lines_between_equal_ones(clock):
    paper, one, lanes = folds(4)
    for lane in lanes:
        lane.lines(b"rank %d of 4\nready\n%s\nstep\n" % (lane.rank, b"odd" if lane.rank % 2 else b"even"))
        clock[0] += 0.03
        one.run(clock[0])
    clock[0] += 0.15
    one.run(clock[0])
    lines = paper.data.split(b"\n")
    assert sorted(lines[:4]) == [b"[%d] rank %d of 4" % (r, r) for r in range(4)] and lines[4] == b"[0-3] ready"
    assert sorted(lines[5:7]) == [b"[0,2] even", b"[1,3] odd"] and lines[7:] == [b"[0-3] step", b""]


def test_a_rank_that_is_late_or_has_ended_holds_nobody_up(clock):
    paper, one, lanes = folds(3)
    lanes[0].lines(b"a\nb\n")
    lanes[1].lines(b"a\nb\n")
    clock[0] += 0.2
    one.run(clock[0])
    assert paper.data == b"[0-1] a\n[0-1] b\n"
    lanes[2].close()
    lanes[0].lines(b"c\n")
    lanes[1].lines(b"c\n")
    one.run(clock[0])
    assert paper.data.endswith(b"[0-1] c\n")


def expand(text):
    """Rank -> its lines, of folded text."""
    found = {}
    for line in text.decode().splitlines():
        ranks, rest = re.fullmatch(r"\[([\d,-]+)\] (.*)", line).groups()
        for low, _, high in (word.partition("-") for word in ranks.split(",")):
            for rank in range(int(low), int(high or low) + 1):
                found.setdefault(rank, []).append(rest)
    return found


@pytest.mark.parametrize("flood", [False, True])
def test_nothing_is_lost_and_the_order_stays(clock, monkeypatch, flood):
    """Random lines at random times: each rank's lines are all there, in their order, at most 160 ms later."""
    if flood:
        monkeypatch.setattr(fold, "ALIGN_MAX", 40)
    monkeypatch.setattr(fold, "LANE_MAX", 400)
    for seed in range(2000 if LONG else 250):
        draw = random.Random(seed)
        world = draw.randrange(1, 6)
        paper, one, lanes = folds(world)
        said = {rank: [] for rank in range(world)}
        begun, out, known = {rank: [] for rank in range(world)}, {rank: [] for rank in range(world)}, 0
        programs = [[f"line {draw.randrange(12)}" for _ in range(40)] for _ in range(draw.choice((1, world)))]
        for _ in range(draw.randrange(5, 80)):
            rank = draw.randrange(world)
            program = programs[rank % len(programs)]
            for _ in range(draw.randrange(1, 6)):
                line = program[len(said[rank]) % 40] if draw.random() < 0.9 else f"own {rank} {draw.randrange(100)}"
                said[rank].append(line)
                begun[rank].append(clock[0])
                lanes[rank].lines(line.encode() + b"\n")
            if draw.random() < 0.1:
                lanes[draw.randrange(world)].close()
            if draw.random() < 0.05:
                one.flush()
            clock[0] += draw.choice((0, 0.001, 0.02, 0.2))
            one.run(clock[0])
            for rank, lines in expand(paper.data[known:]).items():
                out[rank] += lines
            known = len(paper.data)
            assert all(clock[0] - when < 0.16 for rank in range(world) for when in begun[rank][len(out[rank]) :]), seed
        one.flush()
        assert expand(paper.data) == {rank: lines for rank, lines in said.items() if lines}, seed


def test_lines_in_step_are_what_a_look_at_every_line_finds(clock, monkeypatch):
    """Own, shared and repeated lines: the quick way folds what the long way folds."""
    for seed in range(2000 if LONG else 250):
        results, begin = [], clock[0]
        for quick in (True, False):
            draw = random.Random(seed)
            world = draw.randrange(2, 6)
            share, kinds = draw.choice((0.3, 0.5, 0.9)), draw.choice((2, 12, 1000))
            with monkeypatch.context() as patch:
                if not quick:
                    patch.setattr(fold, "in_step", lambda parts, shared: [])
                paper, one, lanes = folds(world)
                for _ in range(draw.randrange(1, 5)):
                    texts = [b""] * world
                    for _ in range(draw.randrange(1, 30)):
                        common = b"common %d\n" % draw.randrange(kinds) if draw.random() < share else b""
                        for rank in range(world):
                            if not common or draw.random() < 0.02:
                                texts[rank] += b"own %d %d\n" % (rank, draw.randrange(100)) * draw.randrange(3)
                            texts[rank] += common
                    for lane, text in zip(lanes, texts):
                        lane.lines(text)
                        clock[0] += draw.choice((0, 0.02))
                        one.run(clock[0])
                    clock[0] += 0.1
                    one.run(clock[0])
                one.flush()
            results.append((sorted(paper.data.splitlines()), expand(paper.data)))
            clock[0] = begin
        assert results[0] == results[1], seed


def test_states_are_lines_every_so_often(clock):
    paper, one, lanes = folds(2, every=30.0)
    streams = [Stream(lane.rank, None, paper, lane, False) for lane in lanes]
    for second in range(100):
        for stream in streams:
            stream.emit(b"\r%3d%%" % second)
        clock[0] += 1
        one.run(clock[0])
    for stream in streams:
        stream.emit(b"\r100%\nend\n")
        stream.flush()
    one.flush()
    assert paper.data == b"".join(b"[0-1] %s\n" % text for text in (b" 29%", b" 59%", b" 89%", b"100%", b"end"))
    paper, one, lanes = folds(2, every=0.0)
    lanes[0].show([b"50%"])
    assert one.next() == fold.NEVER


# What stands below the lines of a terminal.


def rows_of(*states, columns=80):
    paper, one, lanes = folds(len(states))
    for lane, rows in zip(lanes, states):
        lane.show([rows] if isinstance(rows, bytes) and rows else rows)
    return [row.decode() for row in status_rows(paper.folds, columns)]


def test_status_rows():
    bar = b"train:  45%%|####  | 45/100 [00:0%d<00:04]"
    assert rows_of(bar % 3, bar % 4, b"") == ["[0-1] train:  45%|####  | 45/100 [00:03<00:04]"]
    assert rows_of(b"43% 43/100", b"45% 45/100", b"44% 44/100") == ["[0-2] 43-45%, slowest rank 0"]
    assert rows_of(b"a 10/20", b"a 5/20") == ["[0-1] a 25-50%, slowest rank 1"]
    assert rows_of([b"a 1/2", b"b 1/3"], [b"a 1/2", b"b 1/3"], b"waits") == ["[0-1] a 1/2", "[0-1] b 1/3", "[2] waits"]
    assert rows_of(*(b"part %s: %d/9" % (b"abcdef"[i : i + 1], i) for i in range(6))) == ["[0-5] 0-55%, slowest rank 0"]
    assert len(rows_of(*(b"%d/%d" % (i, i + 1) for i in range(6)))) == 3
    assert rows_of(b"x" * 100, columns=20) == ["[0] " + "x" * 15]
    assert cut("\x1b[31m火火火\b\t\x00e\u0301\x1b[0m".encode(), 5).decode() == "\x1b[31m火火\x1b[0m"
    assert cut(b"\xff%s\x1b[A/5%%%d", 99).decode() == "\ufffd%s[A/5%%%d"


# Programs.


BARS = {
    "tqdm": """
        import tqdm
        for i in tqdm.tqdm(range(COUNT)): time.sleep(0.01)
    """,
    "nested tqdm": """
        import tqdm
        for i in tqdm.tqdm(range(COUNT // 20), desc="outer"):
            for j in tqdm.tqdm(range(20), desc="inner", leave=False): time.sleep(0.01)
    """,
    "rich": """
        from rich.console import Console
        from rich.progress import Progress
        with Progress(console=Console(force_terminal=True, width=70)) as bars:
            tasks = [bars.add_task(name, total=COUNT) for name in ("first", "second")]
            for i in range(COUNT):
                for task in tasks: bars.advance(task)
                time.sleep(0.01)
    """,
    "click": """
        import click
        sys.stderr.isatty = lambda: True
        with click.progressbar(range(COUNT), file=sys.stderr) as bar:
            for i in bar: time.sleep(0.01)
    """,
}


@pytest.mark.parametrize("name", BARS)
@pytest.mark.slow
def test_bars_in_a_pipe(script, name):
    pytest.importorskip(name.split()[-1])
    count = 6000 if LONG else 120
    path = script(textwrap.dedent(BARS[name]).replace("COUNT", str(count)))
    code, out, err, _ = folded("--nproc-per-node=4", path, text=False, timeout=180)
    lines = (out + err).decode().splitlines()
    assert code == 0 and b"\r" not in out + err and not re.search(rb"\x1b\[[^m]*[A-Za-ln-z]", out + err), lines
    for rank, mine in expand(out + err).items():
        assert len(mine) <= 3 * (2 if name in ("rich", "nested tqdm") else 1), lines
        assert all("100%" in line for line in mine[-2 if name == "rich" else -1 :]), lines
    assert sorted(expand(out + err)) == [0, 1, 2, 3]


def tries(*args, **more):
    """(stdout, stderr) of several runs: where the machine keeps a rank from running for 150 ms its lines come alone."""
    for _ in range(5):
        code, out, err, _ = folded(*args, timeout=60, **more)
        assert code == 0, err
        yield out, err


def test_equal_lines_of_eight_ranks(script):
    path = script(TOGETHER + "for i in range(1000): print('line', i)\n")
    for out, err in tries("--nproc-per-node=8", path):
        assert err == "" and expand(out.encode()) == {r: [f"line {i}" for i in range(1000)] for r in range(8)}
        if out.count("\n") == 1000:
            break
    assert out == "".join(f"[0-7] line {i}\n" for i in range(1000))


def in_terminal(*args, keys=None, **env):
    """What a launcher writes to a terminal of 60 columns."""
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with start(*args, stdout=theirs, stderr=theirs, env=environment(TERM="xterm", **env)) as process:
        os.close(theirs)
        data = b""
        while select.select([own], [], [], 30)[0]:
            try:
                data += os.read(own, 4096)
            except OSError:
                break
        code = process.wait(timeout=10)
    os.close(own)
    return code, data.decode()


@pytest.mark.parametrize("name", ["tqdm", "nested tqdm", "rich"])
def test_bars_on_a_terminal(script, name):
    pytest.importorskip(name.split()[-1])
    text = textwrap.dedent(BARS[name]).replace("COUNT", "100") + "print('end')\n"
    code, data = in_terminal("--fold=auto", "--nproc-per-node=4", script(TOGETHER + text), NO_COLOR="1")
    pictures = re.findall(r"\[[0-9,-]+\] [^\r\n\x1b]*\d+%", data)
    assert code == 0 and len(pictures) > 5, "the bars move"
    lines = [line.rstrip() for line in terminal(data)]
    left = [line for line in lines if line]
    assert "[0-3] end" in left or len([line for line in left if line.endswith(" end")]) > 1
    assert all(line.endswith(" end") or "100%" in line for line in left), left
    assert len(left) <= (3 if name == "rich" else 2) * 4


def test_at_most_three_rows_on_a_terminal(script):
    path = script("""
        for i in range(30):
            print(f"\\r{rank}: {i}/{30 + rank} " + "x" * 100, end="", flush=True)
            if i % 10 == 0: print("note", i, file=sys.stderr)
            time.sleep(0.02)
        print("\\r" + " " * 110, end="\\r")
    """)
    code, data = in_terminal("--fold=auto", "--nproc-per-node=5", path)
    assert code == 0 and max(map(len, re.findall(r"(?:\x1b\[A\x1b\[K)+", data))) == 2 * 6  # from the third row up
    left = [line.rstrip() for line in terminal(data)]
    assert {line.partition("] ")[2] for line in left if line} == {"note 0", "note 10", "note 20"}, left


def test_colours_prefixes_and_filters(script):
    path = script(TOGETHER + "print('out')\nif rank == 3: print('err', file=sys.stderr)\n")
    options = ["--nproc-per-node=4", "--role=train", "--prefix={role}:{local_rank}/{host}| "]
    host = os.uname().nodename
    assert (f"train:0-3/{host}| out\n", f"train:3/{host}| err\n") in tries(*options, path)
    options = ["--nproc-per-node=4", "--color=always", "--filter-ranks=0,2-3"]
    assert ("\x1b[36m[0,2-3] \x1b[0mout\n", "\x1b[2;35m[3] \x1b[0merr\n") in tries(*options, path)
    code, out, err, _ = folded("--nproc-per-node=4", "--local-ranks-filter", "1", "--prefix={time} ", path)
    assert re.fullmatch(r"\d\d:\d\d:\d\d out\n", out) and err == ""


def test_files_keep_the_bytes_of_hidden_ranks(script, tmp_path):
    path = script("os.write(1, b'\\r 0%\\r100%\\n')")
    code, out, _, _ = folded("--nproc-per-node=2", "--log-dir", tmp_path, "--rdzv-id=job", "--filter-ranks=1", path)
    assert (code, out) == (0, "[1] 100%\n")
    for local in "01":
        assert (tmp_path / "job" / "attempt_0" / local / "stdout.log").read_bytes() == b"\r 0%\r100%\n"


def test_lines_of_several_hosts_are_one(script, ssh):
    path = script(
        TOGETHER
        + """
print("[7] same")
print("of host", os.environ["GROUP_RANK"])
print("of rank", rank)
distributed.barrier()
print("\\r 0%\\r100%", file=sys.stderr)
if rank == 2: print("\\x1b[31m[0] odd\\x1b[0m")
"""
    )
    words = ("--hosts", "127.0.0.1:2,127.0.0.2:2", "--ssh", ssh)
    for out, err in tries(*words, path):
        said = {
            r: ["[7] same", f"of host {r // 2}", f"of rank {r}"] + ["\x1b[31m[0] odd\x1b[0m"] * (r == 2)
            for r in range(4)
        }
        assert expand(out.encode()) == said and expand(err.encode()) == {rank: ["100%"] for rank in range(4)}
        if out.startswith("[0-3] [7] same\n") and "[2-3] of host 1\n" in out and err == "[0-3] 100%\n":
            break
    else:
        raise AssertionError(out + err)
    options = ["--prefix={host}|{local_rank}|{rank}> ", "--filter-ranks=0-2", "--color=always"]
    for out, _ in tries(*words, *options, path):
        assert "\x1b[33m127.0.0.2|0|2> \x1b[0mof host 1\n" in out and "of rank 3" not in out
        if "\x1b[36m127.0.0.1,127.0.0.2|0-1|0-2> \x1b[0m[7] same\n" in out:
            break
    else:
        raise AssertionError(out)


@pytest.mark.slow
def test_bars_of_several_hosts(script, ssh):
    path = script(
        TOGETHER
        + """
for i in range(15):
    print(f"\\r{i}/15 of {os.environ.get('COLUMNS')}", end="", file=sys.stderr)
    time.sleep(0.1)
print("\\r15/15", file=sys.stderr)
"""
    )
    words = ("--hosts", "127.0.0.1:2,127.0.0.2:1", "--ssh", ssh, "--fold=auto")
    code, data = in_terminal(*words, path, NO_COLOR="1")
    assert code == 0 and re.search(r"\[0-2\] (\d+/15 of 54|\d+-\d+%, slowest rank \d)", data), data
    assert {line.rstrip() for line in terminal(data)} <= {
        "",
        *(f"[{ranks}] 15/15" for ranks in ("0-2", "0-1", "2", "0", "1")),
    }
    code, _, err, _ = launch(*words, "--progress-every=0.5", path)
    assert code == 0 and 4 <= len(expand(err.encode())[2]) + len(expand(err.encode())[0]) <= 8 and "\0" not in err


@pytest.mark.parametrize("words", [
    ["--fold=on"], ["--color", "blue"], ["--progress-every=-1"], ["--progress-every", "nan"], ["--progress-every", "x"],
    ["--prefix={pid}"], ["--prefix={"], ["--prefix={0}"], ["--prefix=\n"], ["--filter-ranks=4"], ["--filter-ranks=a"],
    ["--filter-ranks=2-1"], ["--local-ranks-filter", "4"],
])  # fmt: skip
def test_options_that_are_wrong(words):
    with pytest.raises(options.UsageError, match="expected"):
        options.plan_from(*options.parse(["--nproc-per-node=4", *words, __file__]))


def test_options_of_several_hosts():
    plan = options.plan_from(
        *options.parse(["--hosts=a:2,b:3", "--local-ranks-filter=1-2", "--filter-ranks=0-3", __file__])
    )
    assert plan.shown == {1, 3}


def test_a_dead_rank_is_named_behind_many_lines(script):
    path = script(TOGETHER + """
if rank == 3:
    time.sleep(0.5)
    os._exit(7)
for i in range(100000): print(f"rank {rank} says {i} " + "x" * 80)
time.sleep(30)
""")  # fmt: skip
    with start("--fold=auto", "--nproc-per-node=4", path) as process:
        begin = time.monotonic()
        os.set_blocking(process.stdout.fileno(), False)
        while not select.select([process.stderr], [], [], 0)[0]:  # meanwhile somebody reads 1 MB a second
            process.stdout.buffer.raw.read(10000)
            time.sleep(0.01)
            assert time.monotonic() - begin < 20
        line = process.stderr.readline()
        assert re.match(r"pydist\.run: rank 3 \(pid \d+\) exited with code 7", line)
        os.set_blocking(process.stdout.fileno(), True)
        process.stdout.read()
        assert process.wait(timeout=10) == 7


def test_hostile_output(script):
    path = script("""
        os.write(1, bytes(range(256)) * 100)
        os.write(1, b"\\xff\\xfe" * 1000 + b"\\n\\x1b[3")
        time.sleep(0.3)
        os.write(1, b"1mred\\x1b[0m\\n")
        os.write(1, b"z" * 10_000_000)
        os.write(1, b"\\x1b[" * 1000 + b"\\x1b]0;" + b"\\r" * 1000)
        print("\\nthe end")
    """)
    code, out, err, _ = folded("--nproc-per-node=2", path, text=False, timeout=60)
    assert (code, err) == (0, b"") and b"\r" not in out and out.count(b"the end") in (1, 2)
    assert b"\x1b[31mred\x1b[0m\n" in out
    assert sum(len(lines) for lines in re.findall(rb"zz+", out)) in (10_000_000, 20_000_000)
