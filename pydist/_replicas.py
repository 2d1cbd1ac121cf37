"""What pydist.distribute wants to hear of from nn and optim, which do not know it. None: nobody listens.

made(thing): this thread has made a module or an optimizer. step(optimizer, plain, args, kwargs): an optimizer is to
step; plain(optimizer, *args, **kwargs) does it. What distributed.steps wants to hear: stepping(args, kwargs): an
optimizer is about to change its parameters."""

made = step = stepping = None
