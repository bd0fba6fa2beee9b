// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listen addresses by port: most ports have one or two, which are read instead of searched.
//!
//! Ports with more than `DOORS_AT` of them, and all if there are too many at all, are left to the
//! hash, which always has everything.

use crate::Plan;
use crate::abi::{DOOR_IPV4, DOOR_IPV6, DOORS_AT, DOORS_MAX, Door, Doors, Listen};
use crate::classification::listen_value;
use crate::plan::mapped;
use std::collections::BTreeMap;
use std::net::IpAddr;
use zerocopy::{IntoBytes, transmute};

/// `struct tg_doors` of a plan.
pub(crate) fn table(plan: &Plan) -> Vec<u8> {
    let mut first = vec![0_u16; 1 << 16];
    let mut doors = vec![Door::default()]; // number 0 says that there is none
    for (port, mut here) in by_port(plan) {
        if here.len() > DOORS_AT || doors.len() + here.len() > DOORS_MAX {
            continue;
        }
        // One address is more than any.
        here.sort_by_key(|door| door.any != 0);
        let last = here.len() - 1;
        first[usize::from(port)] = doors.len() as u16;
        doors.extend(here.into_iter().enumerate().map(|(n, door)| {
            let more = u8::from(n < last);
            Door { more, ..door }
        }));
    }
    let mut bytes = Vec::with_capacity(size_of::<Doors>());
    first.iter().for_each(|number| bytes.extend_from_slice(&number.to_ne_bytes()));
    doors.iter().for_each(|door| bytes.extend_from_slice(door.as_bytes()));
    bytes.resize(size_of::<Doors>(), 0);
    bytes
}

fn by_port(plan: &Plan) -> BTreeMap<u16, Vec<Door>> {
    let mut ports = BTreeMap::<u16, Vec<Door>>::new();
    for (index, service) in plan.config.services.iter().enumerate() {
        for at in &service.listen {
            let listen = listen_value(plan, index, at.port);
            ports.entry(at.port).or_default().push(door(at.address, listen));
        }
    }
    ports
}

fn door(address: Option<IpAddr>, listen: Listen) -> Door {
    let any = |any| Door { listen, any, ..Door::default() };
    match address {
        None => any(DOOR_IPV4 | DOOR_IPV6),
        Some(ip) if ip.is_unspecified() && ip.is_ipv4() => any(DOOR_IPV4),
        Some(ip) if ip.is_unspecified() => any(DOOR_IPV6),
        Some(ip) => Door { addr: transmute!(mapped(ip)), listen, ..Door::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::testing::plans;
    use std::mem::offset_of;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use tidegate_config::Exempt;
    use tidegate_config::ServiceConfig;
    use tidegate_model::{Listen, Mode, Protocol};

    fn plan(services: &[&[(&str, u16)]]) -> Plan {
        let listen = |(address, port): &(&str, u16)| {
            let address = match *address {
                "any" => None,
                "any4" => Some(Ipv4Addr::UNSPECIFIED.into()),
                "any6" => Some(Ipv6Addr::UNSPECIFIED.into()),
                address => Some(address.parse().unwrap()),
            };
            Listen { address, port: *port, protocol: Protocol::Tcp }
        };
        let service = |(index, listens): (usize, &&[(&str, u16)])| {
            ServiceConfig::new(
                &format!("s{index}"),
                Mode::Enforce,
                listens.iter().map(listen).collect(),
            )
        };
        let mut plan = plans::plan(services.iter().enumerate().map(service).collect());
        plan.config.exempt = Exempt { ports: vec![22], ..Exempt::default() };
        plan
    }

    /// What the kernel reads (`tg_door_of` in packet/classify.h): `None` where it asks the hash, else
    /// the service there.
    fn read(bytes: &[u8], address: &str, port: u16) -> Option<Option<u8>> {
        let first = &bytes[2 * usize::from(port)..][..2];
        let first = usize::from(u16::from_ne_bytes(first.try_into().unwrap()));
        let address: IpAddr = address.parse().unwrap();
        let family = if address.is_ipv4() { DOOR_IPV4 } else { DOOR_IPV6 };
        let door = |number: usize| {
            abi::read::<Door>(&bytes[offset_of!(Doors, door) + size_of::<Door>() * number..])
                .unwrap()
        };
        if first == 0 {
            return None;
        }
        let walk = (first..first + DOORS_AT).map(door);
        let mut more = true;
        let here = walk.take_while(|door| std::mem::replace(&mut more, door.more == 1));
        let fits = |door: &Door| match door.any {
            0 => door.addr.as_bytes() == mapped(address),
            any => any & family != 0,
        };
        Some({ here }.find(fits).map(|door| door.listen.service))
    }

    #[test]
    fn an_address_comes_before_any_address_of_its_family() {
        let services: [&[(&str, u16)]; 3] = [
            &[("any", 80), ("any4", 443), ("any6", 8443), ("0.0.0.0", 81), ("::", 82)],
            &[("192.0.2.1", 80), ("2001:db8::1", 80)],
            &[("192.0.2.1", 443)],
        ];
        let bytes = table(&plan(&services));
        assert_eq!(bytes.len(), size_of::<Doors>());
        for (address, port, service) in [
            ("192.0.2.1", 80, Some(1)),
            ("2001:db8::1", 80, Some(1)),
            ("192.0.2.2", 80, Some(0)),
            ("2001:db8::2", 80, Some(0)),
            ("192.0.2.1", 443, Some(2)),
            ("192.0.2.2", 443, Some(0)),
            ("2001:db8::1", 443, None),
            ("192.0.2.1", 8443, None),
            ("2001:db8::1", 8443, Some(0)),
            ("192.0.2.1", 81, Some(0)),
            ("2001:db8::1", 81, None),
            ("2001:db8::1", 82, Some(0)),
            ("192.0.2.1", 82, None),
        ] {
            assert_eq!(read(&bytes, address, port), Some(service), "{address} {port}");
        }
        assert_eq!(read(&bytes, "192.0.2.1", 79), None, "no door");
    }

    #[test]
    fn a_port_with_too_many_addresses_is_left_to_the_hash() {
        let addresses: Vec<String> = (1..=DOORS_AT + 1).map(|n| format!("192.0.2.{n}")).collect();
        let listens: Vec<(&str, u16)> = addresses.iter().map(|a| (a.as_str(), 80)).collect();
        let fit = table(&plan(&[&listens[..DOORS_AT]]));
        for address in &addresses[..DOORS_AT] {
            assert_eq!(read(&fit, address, 80), Some(Some(0)));
        }
        assert_eq!(read(&fit, &addresses[DOORS_AT], 80), Some(None));
        let bytes = table(&plan(&[&listens, &[("192.0.2.1", 81)]]));
        assert_eq!(read(&bytes, &addresses[0], 80), None);
        assert_eq!(read(&bytes, "192.0.2.1", 81), Some(Some(1)));
    }

    #[test]
    fn what_is_exempt_is_told_at_the_door() {
        let bytes = table(&plan(&[&[("any", 22), ("any", 80)]]));
        let door = |number: usize| {
            abi::read::<Door>(&bytes[offset_of!(Doors, door) + size_of::<Door>() * number..])
                .unwrap()
        };
        assert_eq!((door(1).listen.flags, door(2).listen.flags), (1, 0));
        assert_eq!((door(1).more, door(2).more), (0, 0));
    }
}
