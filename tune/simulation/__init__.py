"""What a configuration will do: the batching policy of the workers on a made-up clock."""
