//! Discrete-event simulator of the real policies
