// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes and links, and which way packets take.

use super::link::{Link, LinkSpec};
use super::packet::{LinkId, NodeId};
use std::collections::VecDeque;
use std::fmt;
use tidegate_workload::Rng;

/// Most nodes: the table of routes has the square of that. A node may stand for many clients.
pub const NODES_MAX: usize = 2048;
/// Streams of the seed from this one on are the links'.
const STREAM: u64 = 0x4e45_5400_0000;
const NO_LINK: u32 = u32::MAX;

/// What is wrong with a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphError {
    /// More than [`NODES_MAX`] nodes.
    Nodes,
    /// This link has a rate of 0, a loss outside of 0 to 1, or a RED out of range.
    Link(LinkId),
    /// This link, or a route over it, does not begin at a node of this graph and end at another.
    Ends(LinkId),
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes => write!(f, "more than {NODES_MAX} nodes"),
            Self::Link(link) => write!(f, "rate, loss or RED of link {} is out of range", link.0),
            Self::Ends(link) => write!(f, "link {} does not begin and end at two nodes", link.0),
        }
    }
}

impl std::error::Error for GraphError {}

/// A network before it runs.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: u32,
    hooked: Vec<NodeId>,
    links: Vec<(NodeId, NodeId, LinkSpec)>,
    fixed: Vec<(NodeId, NodeId, LinkId)>,
}

impl Graph {
    /// A graph without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a host or a router.
    pub fn node(&mut self) -> NodeId {
        self.nodes += 1;
        NodeId(self.nodes - 1)
    }

    /// Adds a node that shows each of its packets to [`App::ingress`](super::App::ingress).
    pub fn hooked(&mut self) -> NodeId {
        let node = self.node();
        self.hooked.push(node);
        node
    }

    /// Adds a link in one direction.
    pub fn link(&mut self, from: NodeId, to: NodeId, spec: LinkSpec) -> LinkId {
        self.links.push((from, to, spec));
        LinkId(self.links.len() as u32 - 1)
    }

    /// Adds two like links, there and back.
    pub fn both(&mut self, a: NodeId, b: NodeId, spec: LinkSpec) -> (LinkId, LinkId) {
        (self.link(a, b, spec), self.link(b, a, spec))
    }

    /// At node `at`, packets for `to` take this link, whatever is shorter. So paths can be
    /// asymmetric.
    pub fn route(&mut self, at: NodeId, to: NodeId, link: LinkId) {
        self.fixed.push((at, to, link));
    }

    fn check(&self) -> Result<(), GraphError> {
        if self.nodes as usize > NODES_MAX {
            return Err(GraphError::Nodes);
        }
        for (index, (from, to, spec)) in self.links.iter().enumerate() {
            let link = LinkId(index as u32);
            if from == to || from.0.max(to.0) >= self.nodes {
                return Err(GraphError::Ends(link));
            }
            if !spec.is_valid() {
                return Err(GraphError::Link(link));
            }
        }
        for (at, to, link) in &self.fixed {
            let from = self.links.get(link.0 as usize).map(|(from, ..)| *from);
            if from != Some(*at) || to.0 >= self.nodes {
                return Err(GraphError::Ends(*link));
            }
        }
        Ok(())
    }

    /// The parts of a network whose links draw from `seed`.
    pub(super) fn parts(self, seed: u64) -> Result<(Vec<Link>, Routes, Vec<bool>), GraphError> {
        self.check()?;
        let routes = Routes::of(&self);
        let mut hooked = vec![false; self.nodes as usize];
        for node in &self.hooked {
            hooked[node.0 as usize] = true;
        }
        let links = self.links.iter().enumerate().map(|(index, (_, to, spec))| {
            Link::new(*spec, *to, Rng::new(seed, STREAM + index as u64))
        });
        Ok((links.collect(), routes, hooked))
    }
}

/// The first link of the way from each node to each other.
#[derive(Debug)]
pub(super) struct Routes {
    nodes: usize,
    next: Vec<u32>,
}

impl Routes {
    /// Fewest links; among equals the link that was added first.
    fn of(graph: &Graph) -> Self {
        let nodes = graph.nodes as usize;
        let mut into: Vec<Vec<(usize, u32)>> = vec![Vec::new(); nodes];
        for (index, (from, to, _)) in graph.links.iter().enumerate() {
            into[to.0 as usize].push((from.0 as usize, index as u32));
        }
        let mut next = vec![NO_LINK; nodes * nodes];
        for to in 0..nodes {
            let mut seen = vec![false; nodes];
            let mut queue = VecDeque::from([to]);
            seen[to] = true;
            while let Some(at) = queue.pop_front() {
                for &(from, link) in &into[at] {
                    if !seen[from] {
                        seen[from] = true;
                        next[from * nodes + to] = link;
                        queue.push_back(from);
                    }
                }
            }
        }
        for (at, to, link) in &graph.fixed {
            next[at.0 as usize * nodes + to.0 as usize] = link.0;
        }
        Self { nodes, next }
    }

    /// The link that packets for `to` take at `at`; none if there is no way.
    pub(super) fn next(&self, at: NodeId, to: NodeId) -> Option<LinkId> {
        let link = *self.next.get(at.0 as usize * self.nodes + to.0 as usize)?;
        (link != NO_LINK).then_some(LinkId(link))
    }
}
