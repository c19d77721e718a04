//! User threads, synchronisation and sockets on borrowed cores
