"""Messages from one rank to another. They are independent of the collectives.

Messages between the same two ranks with the same tag arrive in the order in which they were sent. The receiver's tensor
must have the sender's dtype and number of elements; otherwise both raise CommMismatch and the group ends. If the other
rank dies, PeerFailed is raised. Two ranks may send to each other at the same time, in any size: a message that comes
before its receive is buffered.

Tensors on a GPU travel through host memory, except those of batch_isend_irecv, which NCCL moves from GPU to GPU. For
those, both sides have to call batch_isend_irecv with the same messages in the same order.
"""

import pickle
from array import array

from pydist import _C
from pydist.distributed._group.process_group import for_call, get_global_rank
from pydist.distributed._ops.collectives import rank_of


def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Sends the tensor to rank `dst`. Returns when the tensor may be changed again."""
    dst = rank_of("send", group, "dst", dst, group_dst)
    return for_call(group).send(tensor, dst, tag)


def recv(tensor, src=None, group=None, tag=0, group_src=None):
    """tensor = the next message with this tag from rank `src` (None: from any rank). Returns the rank that sent it."""
    if src is not None or group_src is not None:
        src = rank_of("recv", group, "src", src, group_src)
    source = for_call(group).recv(tensor, src, tag)
    return source if group is None or source is None else get_global_rank(group, source)


def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
    """Starts a send and returns a Work. The tensor must not change until the Work is done."""
    return for_call(group).send(tensor, rank_of("isend", group, "dst", dst, group_dst), tag, True)


def irecv(tensor, src=None, group=None, tag=0, group_src=None):
    """Starts a receive and returns a Work. When it is done, tensor is the next message with this tag from rank `src`
    (None: any)."""
    if src is not None or group_src is not None:
        src = rank_of("irecv", group, "src", src, group_src)
    return for_call(group).recv(tensor, src, tag, True)


class P2POp:
    """One operation for batch_isend_irecv: `op` is isend or irecv, `peer` is the other rank."""

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        if op not in (isend, irecv):
            raise ValueError(f"P2POp: op is {op!r} (expected isend or irecv)")
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.group_peer = rank_of("P2POp", group, "peer", peer, group_peer)
        self.peer = self.group_peer if group is None else get_global_rank(group, self.group_peer)

    def __repr__(self):
        return f"P2POp({self.op.__name__}, peer={self.peer}, tag={self.tag})"


def batch_isend_irecv(p2p_op_list):
    """Starts all operations of the list. Returns one Work for each, in the same order.

    >>> from pydist import distributed as dist
    >>> def work(rank):
    ...     mine, other = pydist.tensor([float(rank)]), pydist.zeros(1)
    ...     ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    ...     for work in dist.batch_isend_irecv(ops):
    ...         work.wait()
    ...     return other.item()
    >>> import pydist
    >>> dist.threads.run(work, 2)
    [1.0, 0.0]
    """
    if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError(
            f"batch_isend_irecv: p2p_op_list is {p2p_op_list!r} (expected a list with at least one P2POp, and nothing else)"
        )
    works, batches = [None] * len(p2p_op_list), {}
    for i, op in enumerate(p2p_op_list):
        group = for_call(op.group)
        if getattr(op.tensor, "is_cuda", False) and not _C.pretended_cuda():
            batches.setdefault(group, []).append(i)
        else:
            works[i] = (group.send if op.op is isend else group.recv)(op.tensor, op.group_peer, op.tag, True)
    for group, places in batches.items():
        ops = [p2p_op_list[i] for i in places]
        done = group.messages([(op.op is isend, op.tensor, op.group_peer, op.tag) for op in ops])
        for i, work in zip(places, done):
            works[i] = work
    return works


def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None, use_batch=False):
    """Sends picklable objects to rank `dst`, which calls recv_object_list with a list of the same length."""
    group, dst = for_call(group), rank_of("send_object_list", group, "dst", dst, group_dst)
    if not isinstance(object_list, list) or not object_list:
        raise ValueError(f"send_object_list: object_list is {object_list!r} (expected a list with at least one entry)")
    data = [pickle.dumps(item) for item in object_list]
    group.send(array("q", map(len, data)), dst)
    group.send(bytearray(b"".join(data)), dst)


def recv_object_list(object_list, src=None, group=None, device=None, group_src=None, use_batch=False):
    """object_list[i] = the i-th object that rank `src` (None: any rank) sends. Returns the rank that sent them."""
    if not isinstance(object_list, list) or not object_list:
        raise ValueError(f"recv_object_list: object_list is {object_list!r} (expected a list with at least one entry)")
    sizes = array("q", bytes(8 * len(object_list)))
    if src is not None or group_src is not None:
        src = rank_of("recv_object_list", group, "src", src, group_src)
    table = for_call(group)
    source = table.recv(sizes, src)
    buffer, at = bytearray(sum(sizes)), 0
    table.recv(buffer, source)
    for i, size in enumerate(sizes):
        object_list[i] = pickle.loads(memoryview(buffer)[at : at + size])
        at += size
    return source if group is None else get_global_rank(group, source)
