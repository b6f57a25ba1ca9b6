"""Fine-tuning: tasks, their files, features, predictions and scores."""
