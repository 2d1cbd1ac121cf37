# tf.lookup: each line is what TensorFlow prints, too
import tensorflow as tf

with open("words.txt", "w") as file:
    file.write("one\ttwo\nthree\tfour\n")
lines, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer("words.txt", tf.string, 0, tf.string, 1), "none")
print(table.lookup(tf.constant(["one", "three", "two"])).numpy(), table.size().numpy())
table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer("words.txt", tf.string, lines, tf.int64, number), -1)
print(
    table[tf.constant(["three\tfour", "x"])].numpy(),
    table.key_dtype.name,
    table.value_dtype.name,
    table.default_value.numpy(),
)
keys, values = table.export()
print(sorted(keys.numpy()), sorted(values.numpy()))
table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
table.insert(tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64))
table.insert(tf.constant(["b"]), tf.constant([5], tf.int64))
print(table.lookup(tf.constant(["a", "b", "c"])).numpy(), table.size().numpy())
table.remove(tf.constant(["a", "zz"]))
print(table.lookup(tf.constant(["a", "b"])).numpy(), [v.numpy() for v in table.export()])
dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=0, deleted_key=-1)
dense.insert(tf.constant([5], tf.int64), tf.constant([7], tf.int64))
print(dense.lookup(tf.constant([5, 6], tf.int64)).numpy())
try:
    tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "a"], [1, 2]), 0)
except tf.errors.FailedPreconditionError:
    print("FailedPreconditionError")
