"""The launcher: ``python -m pydist.run [options] script.py args...``, or ``pydistrun``, runs one process per rank.

``--help`` lists the options: torchrun's and some of our own. With more than one rank, each line of output comes whole,
after "[rank] ". Equal lines that several ranks print within 150 ms are shown once, as "[0-3,5] text" (``--fold off``
turns that off). A progress bar is not a line until it ends: on a terminal bars take at most three rows at the bottom;
in a pipe or file they become a line every 30 s and one at their end (``--progress-every``). When a rank dies, the
others end within two seconds, the first line names the rank and the cause, and the exit code is not zero. Ctrl-C ends
with code 130 and at most five lines that say where the ranks were. No worker outlives the launcher. `pydist/_launch`
does the work.
"""

import os
import sys

from pydist._launch.options import UsageError, environment_from, help_text, parse, plan_from, starts_hosts


def main(argv=None):
    """Runs the job of the command line. Returns the exit code."""
    try:
        options, command = parse(sys.argv[1:] if argv is None else argv)
        if options["help"]:
            os.write(1, help_text().encode())
            return 0
        plan = plan_from(options, command)
        os.environ.update(environment_from(options))
    except UsageError as error:
        os.write(2, f"pydist.run: {error}; --help lists the options\n".encode("utf-8", "replace"))
        return 2
    if starts_hosts(options):
        from pydist._launch.hosts import HostsJob

        return HostsJob(plan, options).run()
    if not plan.max_restarts:
        return _run(plan)
    from pydist._launch.snapshots import Snapshots

    with Snapshots():
        return _run(plan)


def _run(plan):
    """Runs the job, and again after a failure as often as the plan allows."""
    from pydist._launch.job import Job

    while True:
        job = Job(plan)
        code = job.run()
        if not code or job.signal or plan.restart == plan.max_restarts:
            return code
        plan = plan._replace(restart=plan.restart + 1)
        os.write(2, f"pydist.run: starting all ranks again (restart {plan.restart} of {plan.max_restarts})\n".encode())


if __name__ == "__main__":
    sys.exit(main())
