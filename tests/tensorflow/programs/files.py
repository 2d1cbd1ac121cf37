# tf.io and tf.io.gfile: each line is what TensorFlow prints, too
import os

import tensorflow as tf

tf.io.write_file("a/b/text.txt", "hello\nworld\n")
print(tf.io.read_file("a/b/text.txt"), tf.io.matching_files("a/*/*.txt"), tf.io.matching_files("none*").shape)
for wrong in (
    lambda: tf.io.read_file("missing"),
    lambda: tf.io.gfile.listdir("missing"),
    lambda: tf.io.gfile.remove("missing"),
):
    try:
        wrong()
    except tf.errors.NotFoundError:
        print("NotFoundError")
with tf.io.gfile.GFile("a/lines.txt", "w") as file:
    file.write("one\n")
    file.write("two\n")
with tf.io.gfile.GFile("a/lines.txt") as file:
    print(file.readline(), file.tell(), file.read(), file.size(), file.name, file.mode)
with tf.io.gfile.GFile("a/lines.txt") as file:
    print(file.readlines(), file.seekable())
with tf.io.gfile.GFile("a/lines.txt", "rb") as file:
    file.seek(1)
    print(file.read(2), list(tf.io.gfile.GFile("a/lines.txt")))
print(
    tf.io.gfile.exists("a/lines.txt"), tf.io.gfile.exists("b"), tf.io.gfile.isdir("a"), tf.io.gfile.join("a", "b", "c")
)
print(sorted(tf.io.gfile.listdir("a")), tf.io.gfile.glob("a/*.txt"), tf.io.gfile.glob(["a/l*", "a/b/*"]))
tf.io.gfile.makedirs("c/d/e")
tf.io.gfile.mkdir("c/f")
tf.io.gfile.copy("a/lines.txt", "c/copy.txt")
try:
    tf.io.gfile.copy("a/lines.txt", "c/copy.txt")
except tf.errors.AlreadyExistsError:
    print("AlreadyExistsError")
tf.io.gfile.copy("a/lines.txt", "c/copy.txt", overwrite=True)
tf.io.gfile.rename("c/copy.txt", "c/d/moved.txt")
print(sorted((folder, sorted(inner), sorted(files)) for folder, inner, files in tf.io.gfile.walk("c")))
print(tf.io.gfile.stat("a/lines.txt").length, tf.io.gfile.stat("a").is_directory)
tf.io.gfile.remove("a/lines.txt")
tf.io.gfile.rmtree("c")
print(os.listdir("."), os.listdir("a"))

# records
with tf.io.TFRecordWriter("r.tfrecord", options=tf.io.TFRecordOptions(compression_type="")) as writer:
    for n in range(4):
        writer.write(tf.train.Example(features=tf.train.Features(feature={
            "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[n])),
            "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"row {n}".encode()])),
        })).SerializeToString())  # fmt: skip
wanted = {"n": tf.io.FixedLenFeature([], tf.int64), "name": tf.io.FixedLenFeature([], tf.string)}
for row in tf.data.TFRecordDataset(["r.tfrecord"]).map(lambda record: tf.io.parse_single_example(record, wanted)):
    print(row["n"].numpy(), row["name"].numpy())
for rows in tf.data.TFRecordDataset("r.tfrecord").batch(3).map(lambda records: tf.io.parse_example(records, wanted)):
    print(rows["n"], rows["name"].numpy())
example = tf.train.Example()
example.ParseFromString(next(iter(tf.data.TFRecordDataset("r.tfrecord"))).numpy())
print(example.features.feature["name"].bytes_list.value[0], example.features.feature["n"].int64_list.value)
sequence = tf.train.SequenceExample(feature_lists=tf.train.FeatureLists(feature_list={
    "x": tf.train.FeatureList(feature=[tf.train.Feature(float_list=tf.train.FloatList(value=[0.5]))])}))  # fmt: skip
print(len(tf.train.SequenceExample.FromString(sequence.SerializeToString()).feature_lists.feature_list["x"].feature))
