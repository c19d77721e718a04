//! Tests of `libtailwater` as C and C++ programs see it.

mod header;
