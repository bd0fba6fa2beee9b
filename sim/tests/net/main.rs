// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network: links, queues, datagrams and TCP, by hand-computed traces, laws and formulae.

mod laws;
mod links;
mod ns3;
mod shapes;
mod tcp;
mod world;
