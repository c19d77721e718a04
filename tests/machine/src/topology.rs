//! Sockets, cores and hyperthreads of the emulated machine.
//!
//! Owns the notation `SOCKETSxCORESxTHREADS` and its limits. Knows nothing of QEMU.

use anyhow::{Context, bail};
use std::fmt;
use std::str::FromStr;

/// Greatest number of logical CPUs: QEMU's q35 takes 255 without a remapping IOMMU, and fewer are
/// of use on a few real cores.
const MAX_CPUS: u32 = 128;

/// A machine's processors. Each socket is a NUMA node of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Number of sockets.
    pub sockets: u32,
    /// Number of cores of each socket.
    pub cores: u32,
    /// Number of hyperthreads of each core: 1 or 2.
    pub threads: u32,
}

impl Topology {
    /// Returns the number of logical CPUs.
    pub fn cpus(self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    /// Returns the logical CPUs of a socket: QEMU numbers hyperthreads of a core, then cores, then
    /// sockets.
    pub fn cpus_of(self, socket: u32) -> std::ops::Range<u32> {
        let each = self.cores * self.threads;
        socket * each..(socket + 1) * each
    }
}

impl FromStr for Topology {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || format!("`{text}` is not SOCKETSxCORESxTHREADS, such as 2x4x2");
        let numbers: Vec<u32> =
            text.split('x').map(str::parse).collect::<Result<_, _>>().with_context(form)?;
        let [sockets, cores, threads] = numbers[..] else { bail!(form()) };
        if !(1..=2).contains(&threads) {
            bail!("{threads} hyperthreads a core: x86-64 has 1 or 2");
        }
        match sockets.checked_mul(cores).and_then(|cores| cores.checked_mul(threads)) {
            Some(2..=MAX_CPUS) => Ok(Self { sockets, cores, threads }),
            _ => bail!("`{text}` is not 2 to {MAX_CPUS} logical CPUs"),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.sockets, self.cores, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_has_a_node_for_each_socket() {
        let machine: Topology = "2x4x2".parse().expect("a topology");
        assert_eq!((machine.cpus(), machine.cpus_of(1)), (16, 8..16));
        assert_eq!(machine.to_string(), "2x4x2");
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        for text in ["", "4", "2x2", "2x2x2x2", "0x4x1", "1x1x1", "1x2x3", "axbxc", "65536x65536x2", "-1x2x1"]
        {
            assert!(text.parse::<Topology>().is_err(), "{text}");
        }
    }
}
