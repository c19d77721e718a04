//! The station's commands, against a switch without a server or with a silent one.

use super::*;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), 5000);

/// A switch that takes every frame; the server's address is known or not.
struct Silence {
    is_attached: bool,
}

impl Inject for Silence {
    fn inject(&mut self, _frame: &[u8]) -> Delivery {
        Delivery::Delivered
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        self.is_attached.then(|| MacAddr::derived(ip))
    }
}

fn opening() -> Order {
    Order::Open {
        server: SERVER,
        connections: 3,
        config: Box::default(),
        loss_per_million: 0,
        wait: Duration::from_secs(3600),
    }
}

#[test]
fn an_order_that_waits_for_its_server_is_stopped_at_once() {
    for is_attached in [false, true] {
        let (mut station, handle) = tcp_station("load", Ipv4Addr::new(10, 77, 0, 250), [7; 16]).unwrap();
        let clock = Clock::calibrate(5);
        station.start(&Context { clock, mtu: 1500, prefix_len: 16, network6: None }).unwrap();
        let mut switch = Silence { is_attached };
        let mut poll = |station: &mut TcpStation, times: usize| {
            for _ in 0..times {
                station.poll(clock::now(), 32, &mut switch).unwrap();
            }
        };
        // A stop without an order is none, for the next one neither.
        handle.stop_order();
        handle.start(opening()).unwrap();
        poll(&mut station, 3);
        assert!(matches!(handle.poll_outcome(Duration::ZERO), Ok(None)), "attached: {is_attached}");
        handle.stop_order();
        poll(&mut station, 1);
        assert_eq!(handle.poll_outcome(Duration::ZERO).unwrap_err(), TcpError::Stopped);
        // And the next order is carried out.
        handle.start(opening()).unwrap();
        poll(&mut station, 3);
        assert!(matches!(handle.poll_outcome(Duration::ZERO), Ok(None)));
        assert!(matches!(station.stage, Stage::Looking { .. } | Stage::Working(_)), "{:?}", station.stage);
    }
}
