"""What the stages share: the plan, the verdict, the store, the launch and the workload."""

__version__ = "0.1.0"
