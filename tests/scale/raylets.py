"""A Ray cluster on the loopback, as a process that ends with its standard input.

The head has no processor; each node has one. Prints one line of JSON: {"address": …, "head": pid of the
cluster's control plane, "raylets": [pid of each node]}.
"""

import json
import sys

from ray.cluster_utils import Cluster

NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}

cluster = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
nodes = [cluster.add_node(**NODE, num_cpus=1, wait=False) for _ in range(int(sys.argv[1]))]
cluster.wait_for_nodes()
raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
head = cluster.head_node.all_processes["gcs_server"][0].process.pid
sys.stdout.write(json.dumps({"address": cluster.address, "head": head, "raylets": raylets}) + "\n")
sys.stdout.flush()
sys.stdin.read()
cluster.shutdown()
