//! The ports at the start: their network, their addresses, and their descriptors for a takeover.

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use tailwater_ports::{Attachment, Context, Port, PortError, PortInterface};
use tailwater_shm::Clock;
use tailwater_shm::control::Network;

use super::start_error::StartError;
use crate::config::Config;
use crate::control::directory::Directory;
use crate::control::takeover::Devices;

/// Returns the network of the runtimes of an IOKernel with these ports.
pub(crate) fn network_of(config: &Config, ports: &[Box<dyn Port>]) -> Network {
    let gateway = ports.iter().find_map(|port| match port.attachment() {
        Attachment::Uplink { gateway } => gateway,
        Attachment::Station { .. } => None,
    });
    let Config { network: ip, prefix_len, mtu, .. } = *config;
    Network { ip, prefix_len, gateway, ip6: config.ip6_of(ip), mtu }
}

/// Checks the address that a port has in the network.
///
/// # Errors
/// If it is no host's.
pub(crate) fn check_address(config: &Config, port: &dyn Port) -> Result<(), PortError> {
    let (Attachment::Station { ip, .. } | Attachment::Uplink { gateway: ip }) = port.attachment();
    match ip.filter(|ip| !config.is_host(*ip)) {
        None => Ok(()),
        Some(ip) => {
            let why =
                format!("address {ip} is not a host address of {}/{}", config.network, config.prefix_len);
            Err(PortError { port: port.name().to_owned(), why })
        }
    }
}

/// Returns copies of the descriptors of each port, for an IOKernel that takes over.
///
/// # Errors
/// If no descriptor is left.
pub(super) fn devices_of(ports: &[Box<dyn Port>]) -> Result<Vec<Devices>, Errno> {
    let of = |port: &dyn Port| {
        let files = port
            .devices()
            .into_iter()
            .map(|device| fcntl_dupfd_cloexec(device, 0))
            .collect::<Result<_, _>>()?;
        Ok(Devices { port: port.name().to_owned(), files, last: port.devices_last() })
    };
    ports.iter().map(|port| of(&**port)).collect()
}

/// Starts the ports and enters their addresses; returns their interfaces.
pub(super) fn start_ports(
    ports: &mut [Box<dyn Port>],
    directory: &mut Directory,
    config: &Config,
    clock: Clock,
) -> Result<Vec<PortInterface>, StartError> {
    let network6 = config.ip6_of(config.network);
    let context = Context { clock, mtu: config.mtu, prefix_len: config.prefix_len, network6 };
    let (mut uplinks, mut interfaces) = (0, Vec::new());
    for number in 0..ports.len() {
        let port = &ports[number];
        let name = port.name().to_owned();
        let fail = |why: String| PortError { port: name.clone(), why };
        if ports[..number].iter().any(|other| other.name() == name) {
            return Err(fail("another port has this name".to_owned()).into());
        }
        let (ip, mac) = match port.attachment() {
            Attachment::Station { mac, ip } => (ip, Some(mac)),
            Attachment::Uplink { gateway } => {
                uplinks += 1;
                (gateway, None)
            }
        };
        if uplinks > 1 {
            return Err(fail("another port is the uplink; an IOKernel has one at most".to_owned()).into());
        }
        if let Some(mac) = mac.filter(|mac| mac.is_group()) {
            return Err(fail(format!("{mac} is a multicast address")).into());
        }
        check_address(config, &**port)?;
        if !directory.reserve(&name, ip, mac) {
            return Err(fail("another port has its address".to_owned()).into());
        }
        ports[number].start(&context)?;
        let mut interface = ports[number].interface(&context);
        if let Some(taken) = interface.as_mut().and_then(PortInterface::take_taken) {
            directory.set_taken(taken);
        }
        interfaces.extend(interface);
        if !directory.reserve(&name, None, ports[number].mac()) {
            return Err(fail("another port has its MAC address".to_owned()).into());
        }
    }
    Ok(interfaces)
}
