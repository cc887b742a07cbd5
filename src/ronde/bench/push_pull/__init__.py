"""Dense values pushed to a parameter server and pulled back, by ronde's KVStore and by MXNet's."""
