"""The launcher's report at the end: which rank failed first and why, what the others did, and the exit code."""

import signal

from pydist._launch.traces import exceptions, is_peer_failed, listed, place
from pydist._launch.worker import signal_name


class Report:
    def __init__(self, plan, say):
        self.plan, self.say = plan, say
        self.server = None  # host 0's server, which also hears of exceptions on other hosts
        self.workers = []  # the workers of this host
        self.failed = []  # workers in the order of their deaths, without those that the launcher ended
        self.last = None  # the worker that ended last
        self.judged = False
        self.root = None  # the worker that failed first; None after judge(): it is on another host
        self.text = ""  # its traceback, which the launcher has shown

    def judge(self, last=False):
        """Names the rank that failed first, once that is known, and not one that ended only because of another rank."""
        if self.judged or not self.failed:
            return
        raised = self.server and self.server.first_raised()
        if raised and not is_peer_failed(raised[1]):
            rank, text = raised[0], raised[1].rstrip("\n") + "\n"
            cause = "raised " + (exceptions(text) or text.splitlines())[-1]
            root = next((worker for worker in self.workers if worker.rank == rank), None)
        else:
            root = next((worker for worker in self.failed if not worker.because_of_peer), None)
            if root is None and last:
                root = self.failed[0]
            if root is None:
                return
            rank, text, cause = root.rank, root.trace, root.cause
        self.say(f"pydist.run: rank {rank} ({f'pid {root.pid}' if root else 'on another host'}) {cause}")
        shown = root and not root.err.held and exceptions(root.trace)[-1:] == exceptions(text)[-1:]
        if not shown:
            self.say(text)
        self.judged, self.root, self.text = True, root, text

    def write(self, by_signal):
        """Writes the rest of the report. Returns the exit code. by_signal: the signal that ended the launcher, or
        None."""
        if by_signal:
            self._write_places(by_signal)
            return 128 + by_signal
        others = {}
        for worker in self.workers:
            if worker is self.root or worker.code == 0:
                continue
            others.setdefault(self._end_of(worker), []).append(worker.rank)
            if not (worker.because_of_peer or worker.cause.startswith("raised")):
                worker.err.release()
        if self.root and self.root.err.held and self.text in self.root.trace:
            self.say(self.root.trace.replace(self.text, "", 1))
        for line, ranks in others.items():
            self.say(f"pydist.run: {listed(ranks)} {line}")
        if self.plan.on_failure == "keep":
            return self.last.code if self.last else 0
        if not self.judged:
            return 0
        return 1 if not self.root or self.root.told_to_end or not self.root.code else self.root.code

    @staticmethod
    def _end_of(worker):
        if worker.code is None:
            return "did not end after SIGKILL"
        if worker.told_to_end:
            return f"ended by the launcher ({signal_name(worker.told_to_end)})"
        return f"then {worker.cause}"

    def _write_places(self, by_signal):
        """Writes at most four lines: where the ranks were."""
        ctrl_c = " (Ctrl-C)" if by_signal == signal.SIGINT else ""
        if not self.plan.by_ssh:
            self.say(f"pydist.run: ended by {signal_name(by_signal)}{ctrl_c}")
        places = {}
        for worker in self.workers:
            where = place(worker.trace)
            if where:
                places.setdefault(where, []).append(worker.rank)
        for where, ranks in list(places.items())[:3]:
            self.say(f"pydist.run: {listed(ranks)} at {where}")
