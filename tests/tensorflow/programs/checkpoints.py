# tf.train.Checkpoint: each line is what TensorFlow prints, too
import os

import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.l1 = tf.keras.layers.Dense(5)

    def call(self, x):
        return self.l1(x)


def toy_dataset():
    inputs = tf.range(10.0)[:, None]
    labels = inputs * 5.0 + tf.range(5.0)[None, :]
    return tf.data.Dataset.from_tensor_slices(dict(x=inputs, y=labels)).repeat().batch(2)


def train_step(net, example, optimizer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(net(example["x"]) - example["y"]))
    variables = net.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


def train_and_checkpoint(net, manager, ckpt, iterator, opt):
    ckpt.restore(manager.latest_checkpoint)
    if manager.latest_checkpoint:
        print(f"Restored from {manager.latest_checkpoint}")
    else:
        print("Initializing from scratch.")
    for _ in range(20):
        loss = train_step(net, next(iterator), opt)
        ckpt.step.assign_add(1)
        if int(ckpt.step) % 10 == 0:
            print(f"Saved checkpoint for step {int(ckpt.step)}: {manager.save()}")
    return loss


def fresh():
    opt, net, iterator = tf.keras.optimizers.Adam(0.1), Net(), iter(toy_dataset())
    ckpt = tf.train.Checkpoint(step=tf.Variable(1), optimizer=opt, net=net, iterator=iterator)
    manager = tf.train.CheckpointManager(ckpt, "./tf_ckpts", max_to_keep=3)
    return net, manager, ckpt, iterator, opt


first = fresh()
train_and_checkpoint(*first)
second = fresh()
print(second[1].checkpoints, second[1].latest_checkpoint, second[1].directory, second[1].checkpoint is second[2])
train_and_checkpoint(*second)
print(second[1].checkpoints, int(second[2].step), int(second[2].save_counter))
print(sorted(os.listdir("tf_ckpts")))
print(tf.train.latest_checkpoint("tf_ckpts"), tf.train.latest_checkpoint("nowhere"))
state = tf.train.get_checkpoint_state("tf_ckpts")
print(state.model_checkpoint_path, list(state.all_model_checkpoint_paths))

# values by names of attributes
source = tf.train.Checkpoint(a=tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])), other=tf.Variable(3.0))
path = source.write("./plain")
print(path, source.save("./numbered"), source.save("./numbered"), int(source.save_counter))
target = tf.Variable([0.0, 0.0])
inner = tf.train.Checkpoint(w=target)
status = tf.train.Checkpoint(a=inner).read(path)
print(target.numpy(), status.assert_existing_objects_matched() is status, status.assert_nontrivial_match() is status)
print(status.expect_partial() is status)
try:
    status.assert_consumed()
except AssertionError:
    print("not all was used")
late = tf.Variable([0.0, 0.0])
holder = tf.train.Checkpoint()
root = tf.train.Checkpoint(a=holder)
root.read(path)
print(late.numpy())
holder.w = late
print(late.numpy())
both = tf.train.Checkpoint(a=tf.train.Checkpoint(w=tf.Variable([0.0, 0.0])), other=tf.Variable(0.0))
print(both.read(path).assert_consumed() is not None, both.other.numpy())
for wrong in (lambda: tf.train.Checkpoint(a=3), lambda: tf.train.Checkpoint(w=target).restore(None).assert_consumed(),
              lambda: tf.train.Checkpoint(other=tf.Variable([1.0])).read(path)):  # fmt: skip
    try:
        wrong()
    except (ValueError, AssertionError) as error:
        print(type(error).__name__)
try:
    tf.train.Checkpoint(w=target).restore("./missing")
except tf.errors.NotFoundError:
    print("NotFoundError")

# lists, dictionaries, modules
save = tf.train.Checkpoint()
save.listed = [tf.Variable(1.0)]
save.listed.append(tf.Variable(2.0))
save.mapped = {"one": save.listed[0]}
save.mapped["two"] = save.listed[1]
path = save.save("./tf_list_example")
restore = tf.train.Checkpoint()
v2 = tf.Variable(0.0)
restore.mapped = {"two": v2}
restore.restore(path)
print(v2.numpy())


class Dense(tf.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = tf.Variable([[1.0]], name="w"), tf.Variable([0.0], name="b")


class Stack(tf.Module):
    def __init__(self):
        super().__init__()
        self.parts = [Dense(), Dense()]


stack, other = Stack(), Stack()
stack.parts[1].b.assign([7.0])
path = tf.train.Checkpoint(model=stack).write("./stack")
print(len(stack.variables), len(stack.submodules), stack.name, [v.name for v in stack.trainable_variables])
tf.train.Checkpoint(model=other).read(path).assert_consumed()
print(other.parts[1].b.numpy())
print([entry for entry in tf.train.list_variables(path) if entry[0].endswith("VALUE")])
reader = tf.train.load_checkpoint(path)
key = "model/parts/1/b/.ATTRIBUTES/VARIABLE_VALUE"
print(
    reader.get_tensor(key),
    reader.get_variable_to_dtype_map()[key].name,
    reader.get_variable_to_shape_map()[key],
    reader.has_tensor("x"),
)
print(tf.train.load_variable(path, key))
managed = tf.train.CheckpointManager(
    tf.train.Checkpoint(x=tf.Variable(1.0)), "./every", max_to_keep=1, step_counter=(step := tf.Variable(0)),
    checkpoint_interval=5, init_fn=lambda: print("begin"), checkpoint_name="model")  # fmt: skip
print(managed.restore_or_initialize(), managed.checkpoint_interval)
for _ in range(12):
    path = managed.save()
    if path:
        print(int(step), path)
    step.assign_add(1)
print(
    managed.save(checkpoint_number=99, check_interval=False),
    managed.restore_or_initialize(),
    sorted(os.listdir("every")),
)
print(list(tf.train.checkpoints_iterator("./every", timeout=0.01)))
options = tf.train.CheckpointOptions(experimental_io_device="/job:localhost")
print(tf.train.Checkpoint(w=target).save("./with_options", options=options))
spec = tf.train.ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})
print(
    spec.as_dict() == {"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    sorted(spec.jobs),
    spec.num_tasks("worker"),
    spec.job_tasks("ps"),
)
print(spec.task_indices("worker"), spec.task_address("worker", 1))
