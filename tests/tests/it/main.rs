//! IOKernels, programs as processes, Linux through TAP, two machines in namespaces.

mod absent;
mod attached;
mod authority;
mod debugging;
mod dns_clients;
mod ends;
mod exclusive;
mod fuzz_corpus;
mod hostile;
mod kv_backups;
mod kv_clients;
mod pid_namespace;
mod protocol;
mod readme;
mod rejoin;
mod replace;
mod restart;
mod service_manager;
mod takeover;
mod takeover_xdp;
mod tap;
mod tcp_clients;
mod tcp_linux;
mod tcp_orphans;
mod two_machines;
mod users;
