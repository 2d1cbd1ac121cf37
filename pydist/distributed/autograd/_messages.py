"""What the agent calls for each message, so that the graph goes on across it.

A call that is made in a context carries the context's id, and so does its answer. Where tensors in it require a
gradient, the sender keeps a node for them under the message's id, and the receiver makes its tensors the results of
another node, which knows the sender and that id.
"""

from pydist.distributed.autograd import _contexts


def current():
    """The id of this thread's context; 0 if it has none."""
    context = _contexts.of_thread()
    return 0 if context is None else context.id


class entered:
    """`with entered(context_id):` the context is this thread's; 0: none is. This worker knows it from then on."""

    __slots__ = ("_context", "_before")

    def __init__(self, context_id):
        self._context = _contexts.worker().meet(context_id) if context_id else None

    def __enter__(self):
        self._before = getattr(_contexts._here, "context", None)
        _contexts._here.context = self._context

    def __exit__(self, *_):
        _contexts._here.context = self._before
        self._context = self._before = None


def outgoing(tensors, to):
    """Called before `tensors` are sent to worker `to`, in a call or an answer. None: this thread has no context. Else
    (context's id, message's id, flags): bytes to be handed to incoming(); the message's id is 0 if none of the tensors
    carries a gradient."""
    context = _contexts.of_thread()
    return None if context is None else context.send(tensors, to)


def incoming(context_id, message_id, tensors, flags, sender):
    """Called with what outgoing() of worker `sender` has returned, and with the tensors that came. Returns them as the
    list to be used."""
    context = _contexts.worker().meet(context_id)
    if context is not None and message_id:
        context.receive(message_id, tensors, flags, sender)
    return list(tensors)


def undo(context_id, message_id):
    """The message that outgoing() has announced could not be sent."""
    context = _contexts.worker().contexts.get(context_id)
    if context is not None:
        context.unsend(message_id)
