//! Pure core-allocation and request-dispatch policies
