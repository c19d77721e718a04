//! ICMP echo replies and received errors (RFC 792, RFC 1122 section 3.2.2).
//!
//! An answer goes to the station that its cause came from, so forged sources cause no address
//! resolution.

use super::Stack;
use super::ip::{Hop, Progress};
use crate::arrived::Arrived;
use crate::counters::CountedEvent;
use crate::outlet::Outlet;
use crate::platform::Platform;
use tailwater_wire::{Addresses, DEFAULT_TTL, IcmpHeader, IcmpMessage, MacAddr, PacketInfo};

impl<P: Platform> Stack<P> {
    /// A message that came from station `mac`.
    pub(super) fn handle_icmp(
        &self,
        outlet: &mut impl Outlet<P>,
        arrived: &Arrived<'_>,
        mac: MacAddr,
        message: &IcmpMessage<'_>,
    ) -> Result<(), CountedEvent> {
        match *message {
            IcmpMessage::EchoRequest { identity, data } => {
                let header = IcmpHeader::echo_reply(identity, data);
                let addresses = arrived.addresses.reversed();
                self.echo(outlet, arrived, addresses, mac, [&header.to_bytes(), data, &[]]);
                Ok(())
            }
            IcmpMessage::Error { why, quote }
                if self.handle_departure(outlet, arrived, why, quote)
                    || self.handle_quote(outlet, arrived.addresses.source(), quote, why) =>
            {
                Ok(())
            }
            IcmpMessage::Error { .. } | IcmpMessage::Other { .. } => {
                self.leave_to_other(CountedEvent::IcmpIgnored)?;
                Err(CountedEvent::IcmpIgnored)
            }
        }
    }

    /// Answers an echo request: in as many pieces as it needs, since it came in as many, and with
    /// its differentiated services (RFC 1349 section 5.1), but not its ECN.
    pub(super) fn echo(
        &self,
        outlet: &mut impl Outlet<P>,
        request: &Arrived<'_>,
        addresses: Addresses,
        mac: MacAddr,
        parts: [&[u8]; 3],
    ) {
        const ECN: u8 = 3;
        let (protocol, traffic_class) = (request.protocol, request.traffic_class & !ECN);
        let packet = PacketInfo { addresses, protocol, hop_limit: DEFAULT_TTL, traffic_class };
        let mtu = self.path_mtu(addresses.destination()).into();
        match self.transmit_parts(outlet, Hop::Station(mac), &packet, parts, mtu, &mut Progress::default()) {
            Ok(()) => self.counters.count(CountedEvent::EchoAnswered),
            Err(_) => self.counters.count(CountedEvent::EgressFull),
        }
    }
}
