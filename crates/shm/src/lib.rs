//! Shared memory between the IOKernel and its runtimes
