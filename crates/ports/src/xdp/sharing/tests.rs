//! What needs a kernel runs in network namespaces, without which it is skipped with a message.

use super::*;
use std::net::Ipv6Addr;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::until;

const GATEWAY: Gateway = Gateway { ip: Ipv4Addr::new(10, 77, 0, 1), ip6: None };
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PROGRAM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));

fn way(network: [u8; 4], len: u8, via: Ipv4Addr) -> Way {
    Way { from: Prefix::all(true), to: Prefix::new(network.into(), len), via: Some(via.into()) }
}

/// Returns the routers of the ways that are followed.
fn routers(gateway: Gateway, ways: &[Way]) -> Vec<IpAddr> {
    let ways = Ways { ways: ways.to_vec(), ..Ways::default() };
    followed(gateway, ways).into_iter().map(|way| way.via).collect()
}

#[test]
fn the_gateway_itself_is_the_next_hop_without_a_default_route() {
    let (longer, default) = (way([198, 51, 100, 0], 24, ROUTER), way([0; 4], 0, ROUTER));
    let (router, itself) = (IpAddr::from(ROUTER), IpAddr::from(GATEWAY.ip));
    assert_eq!(routers(GATEWAY, &[longer]), [router, itself]);
    assert_eq!(routers(GATEWAY, &[longer, default]), [router; 2]);
    assert_eq!(routers(GATEWAY, &[Way { via: None, ..longer }, default]), [router], "to neighbours");
    let of_one = Way { from: Prefix::one(PROGRAM), ..default };
    assert_eq!(routers(GATEWAY, &[of_one]), [router, itself], "of one program alone");
    let ip6 = Some(Ipv6Addr::LOCALHOST);
    let both = routers(Gateway { ip6, ..GATEWAY }, &[default]);
    assert_eq!(both.len(), 2, "a default route of one family says nothing about the other: {both:?}");
}

#[test]
fn many_routes_leave_room_for_the_default_route_and_for_the_other_family() {
    let many = (0..=255).map(|i| way([203, 0, i, 0], 24, ROUTER));
    let default = way([0; 4], 0, Ipv4Addr::new(192, 0, 2, 2));
    let ip6 = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0);
    let six = Way { from: Prefix::all(false), to: Prefix::new(ip6.into(), 48), via: Some(ip6.into()) };
    let routers = routers(GATEWAY, &many.chain([default, six]).collect::<Vec<Way>>());
    assert_eq!(routers.len(), MOST_ROUTES + 2);
    assert_eq!([Some(routers[MOST_ROUTES]), routers.last().copied()], [default.via, six.via]);
}

/// Returns one of `here0` in a namespace whose other end is in the second one; `None`, with
/// the reason printed, if that cannot be made.
fn scene() -> Option<(Sharing, Arc<Addresses>, [Namespace; 2])> {
    let maps = Map::array(1).and_then(|settings| Ok((settings, address_map()?)));
    let (settings, addresses) = match maps {
        Ok((settings, addresses)) => (Arc::new(settings), Arc::new(addresses)),
        Err(error) => {
            eprintln!("skipped: no eBPF map can be made here ({error})");
            return None;
        }
    };
    let namespaces = match [Namespace::new(), Namespace::new()] {
        [Ok(here), Ok(there)] => [here, there],
        [Err(why), _] | [_, Err(why)] => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let [here, there] = &namespaces;
    here.join("here0", there, "there0", 1);
    here.ip(&["addr", "add", "192.0.2.9/24", "dev", "here0"]);
    there.ip(&["addr", "add", "192.0.2.1/24", "dev", "there0"]);
    here.ip(&["route", "add", "default", "via", "192.0.2.1"]);
    let sharing = here.inside(|| {
        let interface = Interface::new("here0").unwrap();
        let (index, mac) = (interface.index().unwrap(), interface.mac().unwrap());
        let owned = Owned { mac, ip: None, ip6: None, network: Ipv4Addr::UNSPECIFIED, prefix_len: 16 };
        let behind = Followed::Addresses(Arc::clone(&addresses), Some(GATEWAY), Arc::new(Latest::default()));
        Sharing::new("here0", index, (settings, owned), 1500, behind).expect("Linux answers")
    });
    Some((sharing, addresses, namespaces))
}

/// Looks as the control thread does until something is so.
fn follow(sharing: &mut Sharing, what: &str, mut is_so: impl FnMut(&Sharing) -> bool) {
    until(what, || {
        sharing.follow(Instant::now());
        is_so(sharing)
    });
}

fn programs(sharing: &Sharing) -> &Programs {
    match &sharing.shared {
        Shared::Addresses(programs) => programs,
        other => panic!("programs are behind it: {other:?}"),
    }
}

#[test]
fn the_station_of_the_default_routes_router_is_found_and_followed() {
    let Some((mut sharing, _, [here, there])) = scene() else { return };
    let station = |f: &Sharing| programs(f).stations.get(&ROUTER.into()).map(ToString::to_string);
    follow(&mut sharing, "the router is found", |f| station(f).is_some());
    let mac = "02:00:00:00:00:07";
    there.ip(&["link", "set", "there0", "address", mac]);
    // What a router that has another address does.
    here.ip(&["neigh", "replace", "192.0.2.1", "lladdr", mac, "dev", "here0", "nud", "reachable"]);
    follow(&mut sharing, "its new address is followed", |f| station(f).as_deref() == Some(mac));
    // Another router.
    there.ip(&["addr", "add", "192.0.2.2/24", "dev", "there0"]);
    here.ip(&["route", "replace", "default", "via", "192.0.2.2"]);
    let other: IpAddr = Ipv4Addr::new(192, 0, 2, 2).into();
    follow(&mut sharing, "the other route is followed", |f| {
        programs(f).taken.contains(&other) && programs(f).stations.contains_key(&other)
    });
    // A rule for a program's address.
    here.ip(&["route", "add", "default", "via", "192.0.2.1", "table", "77"]);
    here.ip(&["rule", "add", "from", "10.77.0.3", "table", "77"]);
    let of_one =
        |f: &Sharing| programs(f).view.ways.iter().find(|way| way.from == Prefix::one(OTHER)).copied();
    follow(&mut sharing, "the rule is followed", |f| {
        of_one(f).is_some_and(|way| way.to == Prefix::all(true) && way.via.is_some())
    });
}

#[test]
fn a_router_of_other_senders_is_no_programs_address_and_no_next_hop() {
    let Some((mut sharing, _, [here, _there])) = scene() else { return };
    let router: IpAddr = Ipv4Addr::new(10, 77, 0, 30).into();
    here.ip(&["route", "add", "default", "via", "10.77.0.30", "dev", "here0", "onlink", "table", "7"]);
    here.ip(&["rule", "add", "from", "172.17.0.0/16", "table", "7"]);
    follow(&mut sharing, "the router is known", |f| programs(f).taken.contains(&router));
    assert!(sharing.take_taken().is_some_and(|taken| taken.contains(&router)));
    assert!(!programs(&sharing).hops.contains(&router));
}

#[test]
fn addresses_of_programs_are_redirected_and_those_of_linux_never() {
    let Some((mut sharing, map, [here, _there])) = scene() else { return };
    let has = |ip| map.get(program::key(ip)).expect("the map can be read").is_some();
    assert!(sharing.take_taken().is_some_and(|taken| taken.contains(&"192.0.2.9".parse().unwrap())));
    sharing.set_programs([PROGRAM, OTHER]);
    assert!(has(PROGRAM) && has(OTHER));
    sharing.set_programs([PROGRAM]);
    assert!(has(OTHER), "the switch answers for a program that has ended");
    let much_later = Instant::now() + KEPT + PAUSE;
    sharing.follow(much_later);
    assert!(has(PROGRAM) && !has(OTHER));
    (sharing.next, sharing.looked) = (None, None);
    here.ip(&["addr", "add", "10.77.0.2/32", "dev", "here0"]);
    follow(&mut sharing, "Linux has its address", |_| !has(PROGRAM));
    assert!(sharing.take_taken().is_some_and(|taken| taken.contains(&PROGRAM)));
    here.ip(&["addr", "del", "10.77.0.2/32", "dev", "here0"]);
    follow(&mut sharing, "it is the program's again", |_| has(PROGRAM));
}

#[test]
fn ended_programs_leave_room_and_are_known_to_the_next_attachment() {
    let Some((mut sharing, map, _namespaces)) = scene() else { return };
    let many = |first: u32, count: usize| -> Vec<IpAddr> {
        (first..).take(count).map(|i| Ipv4Addr::from_bits(i).into()).collect()
    };
    let (early, late) = (many(0x0a4d_1000, 1000), many(0x0a4d_2000, MOST_ENDED));
    for addresses in [&early, &late] {
        sharing.set_programs(addresses.iter().copied());
        sharing.set_programs([]);
    }
    sharing.set_programs([PROGRAM]);
    let has = |ip| map.get(program::key(ip)).expect("the map can be read").is_some();
    assert!(has(PROGRAM) && late.iter().all(|&ip| has(ip)) && !early.iter().any(|&ip| has(ip)));
    assert_eq!(programs(&sharing).theirs.len(), MOST_ENDED + 1);
    let before = sharing.into_programs();
    let Some((mut next, map, _namespaces)) = scene() else { return };
    let has = |ip| map.get(program::key(ip)).expect("the map can be read").is_some();
    next.resume(before);
    next.set_programs([OTHER]);
    // That which was registered before has ended in between: one more than are kept.
    assert!(has(OTHER) && has(PROGRAM));
    assert_eq!(late.iter().filter(|&&ip| has(ip)).count(), MOST_ENDED - 1);
}

#[test]
fn an_interface_that_takes_the_name_changes_no_settings() {
    let Some((mut sharing, _, [here, _there])) = scene() else { return };
    let before = sharing.owned;
    here.ip(&["link", "set", "here0", "down"]);
    here.ip(&["link", "set", "here0", "name", "away0"]);
    here.ip(&["link", "add", "here0", "type", "veth", "peer", "name", "peer0"]);
    sharing.follow(Instant::now() + PAUSE);
    assert_eq!(sharing.owned, before);
}

#[test]
fn the_interfaces_own_address_is_followed() {
    let Some((mut sharing, _, [here, _there])) = scene() else { return };
    let mac = "02:00:00:00:00:08";
    here.ip(&["link", "set", "here0", "address", mac]);
    let owned = |f: &Sharing| {
        let settings = f.settings.get(0).expect("the map can be read").expect("it has one entry");
        settings == f.owned.settings() && f.owned.mac.to_string() == mac
    };
    follow(&mut sharing, "the program has the other address", owned);
    follow(&mut sharing, "so has the translation", |f| programs(f).view.own.to_string() == mac);
    here.ip(&["link", "set", "here0", "mtu", "1400"]);
    follow(&mut sharing, "its MTU is known", |f| f.carries == 1400);
}

#[test]
fn an_iokernel_that_takes_over_keeps_the_addresses_that_are_redirected() {
    let Some((mut sharing, map, [here, _there])) = scene() else { return };
    sharing.set_programs([PROGRAM]);
    let again =
        here.inside(|| Programs::new(Arc::clone(&map), Some(GATEWAY), 16, Arc::new(Latest::default())));
    let again = again.expect("Linux answers");
    assert!(again.entered.contains(&PROGRAM) && again.theirs[&PROGRAM].is_some());
}
