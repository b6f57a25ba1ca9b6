"""Settings: frozen dataclasses that check their values, and absl flags."""

from albert_tf.config.commands import (
    ConvertConfig,
    ExportConfig,
    FirstModelConfig,
    PredictConfig,
    ReportConfig,
    ScoreConfig,
    SweepConfig,
    TextsConfig,
)
from albert_tf.config.data import (
    SENTENCE_OBJECTIVES,
    DataConfig,
    MaskingConfig,
    SequenceConfig,
)
from albert_tf.config.model import PARAMETER_SHARING, ModelConfig
from albert_tf.config.settings import (
    Config,
    fields_with_types,
    flag_name,
    setting,
    settings_by_path,
)
from albert_tf.config.task import (
    FinetuningConfig,
    TaskConfig,
    TaskHeadConfig,
)
from albert_tf.config.training import (
    DistributionConfig,
    InitializationConfig,
    OptimizerConfig,
    PretrainingConfig,
    TrainingConfig,
)
from albert_tf.io.artifact import flatten
