// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections by name: places are used again, names are not.

use super::super::packet::FlowId;
use super::conn::Conn;

#[derive(Debug, Default)]
pub(in crate::net) struct Table {
    slots: Vec<(u32, Option<Box<Conn>>)>,
    free: Vec<u32>,
    live: usize,
}

impl Table {
    pub(super) fn add(&mut self, conn: Conn) -> FlowId {
        self.live += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.1 = Some(Box::new(conn));
        FlowId { slot, generation: place.0 }
    }

    pub(super) fn look(&self, id: FlowId) -> Option<&Conn> {
        let (generation, conn) = self.slots.get(id.slot as usize)?;
        if *generation == id.generation { conn.as_deref() } else { None }
    }

    pub(super) fn get(&mut self, id: FlowId) -> Option<&mut Conn> {
        let (generation, conn) = self.slots.get_mut(id.slot as usize)?;
        if *generation == id.generation { conn.as_deref_mut() } else { None }
    }

    pub(in crate::net) fn remove(&mut self, id: FlowId) {
        if self.look(id).is_some() {
            let place = &mut self.slots[id.slot as usize];
            *place = (place.0.wrapping_add(1), None);
            self.free.push(id.slot);
            self.live -= 1;
        }
    }

    /// Connections that have not ended.
    pub(in crate::net) const fn live(&self) -> usize {
        self.live
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Conn> {
        self.slots.iter().filter_map(|(_, conn)| conn.as_deref())
    }

    /// Whether the books of every connection agree.
    pub(in crate::net) fn is_sound(&self) -> bool {
        self.all().count() == self.live && self.all().all(Conn::is_sound)
    }
}
