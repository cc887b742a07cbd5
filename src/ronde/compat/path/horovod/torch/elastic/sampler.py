from ronde.compat.horovod.elastic import ElasticSampler
