"""What a Spark operator does in a cluster: kubeflow's, whose image cannot be had here."""
