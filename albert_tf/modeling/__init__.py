"""The model as Keras 3 layers."""
