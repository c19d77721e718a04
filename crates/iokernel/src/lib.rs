//! The IOKernel: packet switch and core allocator
