//! The Linux spin server under the load generator, over the loopback device: counts and lower
//! bounds only, because upper bounds on time would measure the test machine.

use std::sync::atomic::AtomicBool;

use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::{Target, run};
use tailwater_spin::Spinner;
use tailwater_spin::linux::{Config, Mode, Server};
use tailwater_testkit::PATIENCE;

#[test]
fn every_request_is_worked_on_and_answered_once() {
    for (mode, threads, flows) in [(Mode::Blocking, 1, 1), (Mode::Blocking, 2, 5), (Mode::BusyPoll, 1, 5)] {
        let listen = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::start(&Config { listen, mode, threads, core: None, spinner: Spinner::calibrate() })
                .unwrap();
        let mut plan = Plan::new("100ms@2k".parse().unwrap(), "const:50us".parse().unwrap());
        plan.flows = flows;
        plan.timeout_ns = PATIENCE.as_nanos() as u64;
        let target = Target { server: server.local_addr(), core: None, wait: PATIENCE };
        let report = run(&plan, 1, &target, &AtomicBool::new(false)).unwrap().report();
        let counts = server.stop();
        assert!(report.figures.completed > 100, "{report:?}");
        assert_eq!(report.figures.lost, 0, "{mode:?}: {report:?}");
        // The generator sends one or more requests to make contact.
        assert!(counts.served > report.figures.completed, "{counts:?}");
        assert_eq!((counts.malformed, counts.unsent), (0, 0));
        // Half of the requested work allows for a clock frequency that changed since calibration.
        assert!(report.figures.p50_us.unwrap() > 25.0, "{report:?}");
    }
}
