//! UDP datagrams from sockets of this host to the link, or to other sockets of this host.

use super::Stack;
use super::ip::{Hop, Progress};
use crate::addressing::Route;
use crate::config::Mode;
use crate::counters::CountedEvent;
use crate::error::{MAX_DATAGRAM, SendError, destination};
use crate::outlet::Outlet;
use crate::platform::Platform;
use crate::udp::{Endpoint, Offer, SocketError};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;
use tailwater_wire::{Addresses, IpProtocol, MacAddr, PacketInfo, UDP_HEADER, UdpHeader};

impl<P: Platform> Stack<P> {
    /// Sends `data` from the socket `endpoint`, bound to `local`, to `to`.
    ///
    /// A datagram to another host is on its way, or waits for its neighbour, when this returns; one
    /// to this host is in the receiver's queue, or dropped because that was full. A datagram longer
    /// than the path's MTU leaves in fragments.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_udp(
        &self,
        outlet: &mut impl Outlet<P>,
        endpoint: &Endpoint<P>,
        local: SocketAddr,
        to: SocketAddr,
        data: &[u8],
    ) -> Result<(), SendError> {
        self.send_udp_from(outlet, endpoint, local, to, data, &mut Progress::default())
    }

    /// As [`send_udp`](Self::send_udp), and continues after an earlier call for the same datagram
    /// for which there was no room.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_udp_from(
        &self,
        outlet: &mut impl Outlet<P>,
        endpoint: &Endpoint<P>,
        local: SocketAddr,
        to: SocketAddr,
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        let to = destination(to)?;
        let ip = if local.ip().is_unspecified() { self.addressing.source_for(to.ip()) } else { local.ip() };
        // A socket bound to `::` may send to both families, one bound to 0.0.0.0 to IPv4 only.
        let family = local.ip() != IpAddr::V4(Ipv4Addr::UNSPECIFIED) || to.is_ipv4();
        let addresses = Addresses::new(ip, to.ip()).filter(|_| family).ok_or(SendError::Family)?;
        if data.len() > MAX_DATAGRAM {
            return Err(SendError::TooLong { len: data.len(), limit: MAX_DATAGRAM });
        }
        let hop = match self.addressing.route(to.ip()) {
            Route::Local => {
                self.send_to_self(SocketAddr::new(ip, local.port()), to, data);
                endpoint.count_sent();
                return Ok(());
            }
            Route::Via(hop) => Hop::Neighbour(hop),
            Route::Broadcast if !endpoint.broadcast.load(Relaxed) => {
                return Err(SendError::BroadcastForbidden);
            }
            Route::Broadcast => Hop::Station(MacAddr::BROADCAST),
            Route::Group => {
                let ports = (local.port(), to.port());
                return self.send_to_group(outlet, endpoint, &addresses, ports, data, progress);
            }
            Route::Unreachable => return Err(SendError::NetworkUnreachable),
        };
        let ports = (local.port(), to.port());
        let packet = udp_packet(addresses, endpoint.ttl.load(Relaxed));
        self.send_datagram(outlet, hop, &packet, ports, data, progress)?;
        endpoint.count_sent();
        Ok(())
    }

    /// Sends a datagram to the link, whole or in fragments.
    #[inline]
    fn send_datagram(
        &self,
        outlet: &mut impl Outlet<P>,
        hop: Hop,
        packet: &PacketInfo,
        ports: (u16, u16),
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        self.check_exit(packet)?;
        let header = UdpHeader::new(&packet.addresses, ports, data);
        let len = UDP_HEADER + data.len();
        let mtu = self.path_mtu(packet.addresses.destination()).into();
        if packet.addresses.header_len() + len <= mtu {
            let fill = |out: &mut [u8], _| {
                let (front, rest) = out.split_at_mut(UDP_HEADER);
                front.copy_from_slice(&header.to_bytes());
                rest.copy_from_slice(data);
            };
            self.transmit_via(outlet, hop, packet, self.fragmenting(packet), len, fill)
        } else {
            self.transmit_parts(outlet, hop, packet, [&header.to_bytes(), data, &[]], mtu, progress)
        }
    }

    /// Sends a datagram to a group: to the link, unless its time to live is zero or there is no
    /// link, and to the socket of this host that has joined the group.
    #[cold]
    fn send_to_group(
        &self,
        outlet: &mut impl Outlet<P>,
        endpoint: &Endpoint<P>,
        addresses: &Addresses,
        ports: (u16, u16),
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        let (source, group) = (addresses.source(), addresses.destination());
        let ttl = endpoint.multicast_ttl.load(Relaxed);
        if ttl > 0 && self.addressing.config().mode == Mode::Attached {
            let hop = Hop::Station(MacAddr::of_ip_group(group));
            self.send_datagram(outlet, hop, &udp_packet(*addresses, ttl), ports, data, progress)?;
        }
        if endpoint.multicast_loop.load(Relaxed) && self.udp.groups().has(group) {
            self.udp.deliver(SocketAddr::new(source, ports.0), SocketAddr::new(group, ports.1), data);
        }
        endpoint.count_sent();
        Ok(())
    }

    /// Delivers a datagram to a socket of this host. If there is none, the sender's socket gets the
    /// error that another host would report.
    fn send_to_self(&self, source: SocketAddr, to: SocketAddr, data: &[u8]) {
        if self.udp.deliver(source, to, data) == Offer::NotMine {
            self.counters.count(CountedEvent::NoSocket);
            self.udp.post_error(source, to, SocketError::Refused);
        }
    }
}

fn udp_packet(addresses: Addresses, hop_limit: u8) -> PacketInfo {
    PacketInfo { addresses, protocol: IpProtocol::UDP, hop_limit, traffic_class: 0 }
}
