# tf.saved_model: each line is what TensorFlow prints, too
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
for w in model.weights:
    w.assign(tf.ones(w.shape))
tf.saved_model.save(model, "model")
print(tf.saved_model.contains_saved_model("model"), tf.saved_model.contains_saved_model("nothing"))
loaded = tf.saved_model.load("model")
serving = loaded.signatures[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
print(serving(tf.ones([1, 3])), serving(inputs=tf.ones([2, 3])))
print(serving.structured_input_signature, serving.structured_outputs)
options = tf.saved_model.SaveOptions(experimental_io_device="/job:localhost")
tf.saved_model.save(model, "model", options=options)
options = tf.saved_model.LoadOptions(experimental_io_device="/job:localhost")
print("serving_default" in tf.saved_model.load("model", options=options).signatures)
for wrong in (
    lambda: serving(tf.ones([1, 3]), tf.ones([1, 3]), tf.ones([1, 3])),
    lambda: serving(wrong=tf.ones([1, 3])),
):
    try:
        wrong()
    except TypeError:
        print("TypeError")
try:
    tf.saved_model.load("nothing")
except OSError:
    print("OSError")
x, y = tf.keras.Input((2,), name="x"), tf.keras.Input((2,), name="y")
two = tf.keras.Model([x, y], {"s": x + y, "t": x * y})
tf.saved_model.save(two, "two")
serving = tf.saved_model.load("two").signatures["serving_default"]
print(sorted(serving(inputs=tf.ones([1, 2]), inputs_1=2 * tf.ones([1, 2])).items()))
print(sorted(serving.structured_outputs.items()))
model.export("exported", verbose=False)
again = tf.saved_model.load("exported")
print(
    again.serve(tf.ones([1, 3])),
    len(again.variables),
    len(again.trainable_variables),
    len(again.non_trainable_variables),
)
