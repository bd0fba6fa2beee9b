// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections of one process, found by the number that epoll hands back.

use super::conn::Conn;
use super::plan::CONNECTIONS_MAX;

/// A place in the table of connections, with the generation that tells later tenants apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) const fn pack(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(crate) const fn unpack(data: u64) -> Self {
        Self { index: data as u32, generation: (data >> 32) as u32 }
    }
}

/// The table of connections; bounded by [`CONNECTIONS_MAX`].
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<(u32, Option<Conn>)>,
    free: Vec<u32>,
}

impl Table {
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < CONNECTIONS_MAX
    }

    /// How many connections there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, conn: Conn) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(conn);
        Key { index, generation: slot.0 }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Conn> {
        let (generation, conn) = self.slots.get_mut(key.index as usize)?;
        if *generation == key.generation { conn.as_mut() } else { None }
    }

    /// Takes the connection out; dropping it closes the socket.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Conn> {
        self.get(key)?;
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.0 = slot.0.wrapping_add(1);
        self.free.push(key.index);
        slot.1.take()
    }
}
