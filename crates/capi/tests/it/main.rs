//! `libtailwater` as C and C++ programs see it: the crate's archive is installed into a folder, and
//! programs are compiled against that, by gcc and clang, whichever are there. Tests print why they
//! are skipped where there is no compiler.

mod compile;
mod examples;
mod header;
mod installed;
mod programs;
