"""Several hosts on one machine: network namespaces, each with a cable to a common router. Needs root and `ip`."""

import os
import shutil
import subprocess


def can_make_namespaces():
    if os.geteuid() or not shutil.which("ip"):
        return False
    name = f"pdtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Hosts:
    """Namespaces pd<pid>-0, -1, ... with addresses 10.213.0.2, 10.213.1.2, ..., and a router between them."""

    def __init__(self, count):
        self.tag, self.count = f"pd{os.getpid() % 100000}", count

    def __enter__(self):
        try:
            ip("netns", "add", f"{self.tag}-router")
            self.inside("router", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            for host in range(self.count):
                self.plug_in(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for name in [*range(self.count), "router"]:
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{name}"], capture_output=True)

    def plug_in(self, host):
        ip("netns", "add", f"{self.tag}-{host}")
        cable, end = f"{self.tag}c{host}", f"{self.tag}e{host}"
        ip("link", "add", cable, "type", "veth", "peer", "name", end)
        ip("link", "set", cable, "netns", f"{self.tag}-router")
        ip("link", "set", end, "netns", f"{self.tag}-{host}")
        for where, device, address in (("router", cable, f"10.213.{host}.1"), (host, end, self.address(host))):
            self.inside(where, "ip", "address", "add", f"{address}/24", "dev", device)
            self.inside(where, "ip", "link", "set", device, "up")
        self.inside(host, "ip", "link", "set", "lo", "up")
        self.inside(host, "ip", "route", "add", "default", "via", f"10.213.{host}.1")

    def address(self, host):
        return f"10.213.{host}.2"

    def command(self, host):
        return ["ip", "netns", "exec", f"{self.tag}-{host}"]

    def inside(self, host, *words):
        return subprocess.run([*self.command(host), *words], check=True, capture_output=True, text=True)
