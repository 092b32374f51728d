"""The models of the program: encoder, classifier of sequences, classifier of pairs, with the parameter names of C++."""

from .classifier import Backbone, Classifier, DualEncoder
from .config import ModelConfig
from .encoder import Encoder, EncoderLayer
from .encoding import Encoding, Tokeniser
from .initialise import initialise
from .repairs import Repairs
from .run import load, load_weights, save

__all__ = ["Backbone", "Classifier", "DualEncoder", "Encoder", "EncoderLayer", "Encoding", "ModelConfig", "Repairs",
           "Tokeniser", "initialise", "load", "load_weights", "save"]
