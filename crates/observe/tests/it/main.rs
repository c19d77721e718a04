//! The program as a user starts it, and the files that are made from the list of statistics.

mod book;
mod contrib;
mod page;
mod program;
