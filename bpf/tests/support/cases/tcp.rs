// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP: which flags are new work, options, offsets that lie, data behind a SYN.

use super::{Case, admit, cases, pass, reject};
use crate::support::packet::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG, eth, syn4, syn6};
use crate::support::setup::{base, rejecting};
use tidegate_policy::Reason::{Malformed, NoLimit, NotNew, NotService, Rate};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    new_work(&mut all);
    not_new(&mut all);
    offsets(&mut all);
    options(&mut all);
    data(&mut all);
    fields(&mut all);
    all
}

fn new_work(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "tcp-syn-psh" "a SYN with PSH is a SYN" => eth().ipv4().tcp(40000, 80).flags(SYN | PSH);
        "tcp-syn-urg" "a SYN with URG is a SYN" => eth().ipv4().tcp(40000, 80).flags(SYN | URG);
        "tcp-syn-ece" "a SYN with ECE is a SYN" => eth().ipv4().tcp(40000, 80).flags(SYN | ECE);
        "tcp-syn-cwr" "a SYN with CWR is a SYN" => eth().ipv4().tcp(40000, 80).flags(SYN | CWR);
        "tcp-syn-ecn" "a SYN with ECE and CWR: a client that can do ECN is a SYN" =>
            eth().ipv4().tcp(40000, 80).flags(SYN | ECE | CWR);
        "tcp-syn-all-harmless" "a SYN with all flags that contradict nothing is a SYN" =>
            eth().ipv4().tcp(40000, 80).flags(SYN | PSH | URG | ECE | CWR);
        "tcp-syn-nonce" "a SYN with the reserved bits set" =>
            eth().ipv4().tcp(40000, 80).syn().nonce(15);
        "tcp-syn-accurate-ecn" "AccECN set-up: three bits" =>
            eth().ipv4().tcp(40000, 80).flags(SYN | ECE | CWR).nonce(1);
    }
}

fn not_new(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(NotNew);
        "tcp-syn-ack" "SYN and ACK" => eth().ipv4().tcp(40000, 80).flags(SYN | ACK);
        "tcp-rst" "RST" => eth().ipv4().tcp(40000, 80).flags(RST);
        "tcp-rst-ack" "RST and ACK" => eth().ipv4().tcp(40000, 80).flags(RST | ACK);
        "tcp-fin" "FIN alone" => eth().ipv4().tcp(40000, 80).flags(FIN);
        "tcp-fin-ack" "FIN and ACK" => eth().ipv4().tcp(40000, 80).flags(FIN | ACK);
        "tcp-ack" "ACK" => eth().ipv4().tcp(40000, 80).flags(ACK);
        "tcp-psh-ack" "PSH and ACK" => eth().ipv4().tcp(40000, 80).flags(PSH | ACK);
        "tcp-null" "no flag at all" => eth().ipv4().tcp(40000, 80).flags(0);
        "tcp-xmas" "FIN, PSH, URG" => eth().ipv4().tcp(40000, 80).flags(FIN | PSH | URG);
        "tcp-all" "every flag" => eth().ipv4().tcp(40000, 80).flags(0xff);
        "tcp-syn-fin" "SYN and FIN: the stack drops it by itself" =>
            eth().ipv4().tcp(40000, 80).flags(SYN | FIN);
        "tcp-syn-rst" "SYN and RST" => eth().ipv4().tcp(40000, 80).flags(SYN | RST);
        "tcp-syn-fin-rst" "SYN, FIN and RST" => eth().ipv4().tcp(40000, 80).flags(SYN | FIN | RST);
        "tcp-syn-fin-psh" "SYN, FIN and PSH" => eth().ipv4().tcp(40000, 80).flags(SYN | FIN | PSH);
        "tcp-syn-ack-ecn" "SYN, ACK and ECE" => eth().ipv4().tcp(40000, 80).flags(SYN | ACK | ECE);
        "tcp-urg" "URG alone" => eth().ipv4().tcp(40000, 80).flags(URG);
        "tcp-ece-cwr" "ECE and CWR without SYN" => eth().ipv4().tcp(40000, 80).flags(ECE | CWR);
        "tcp-ack-ipv6" "ACK over IPv6" => eth().ipv6().tcp(40000, 80).ack(7);
        "tcp-ack-data" "data of a connection" =>
            eth().ipv4().tcp(40000, 80).flags(PSH).ack(7).data(b"GET / HTTP/1.1");
        "tcp-ack-vlan" "an ACK behind a tag" => eth().vlan(10).ipv4().tcp(40000, 80).ack(7);
    }
    cases! { v, rejecting(), pass(NotService);
        "tcp-ack-elsewhere" "an ACK to no service" => eth().ipv4().tcp(40000, 9999).ack(7);
    }
}

fn offsets(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Malformed);
        "tcp-offset-0" "a TCP header of 0 bytes" => eth().ipv4().tcp(40000, 80).syn().doff(0);
        "tcp-offset-1" "a TCP header of 4 bytes" => eth().ipv4().tcp(40000, 80).syn().doff(1);
        "tcp-offset-2" "a TCP header of 8 bytes" => eth().ipv4().tcp(40000, 80).syn().doff(2);
        "tcp-offset-3" "a TCP header of 12 bytes" => eth().ipv4().tcp(40000, 80).syn().doff(3);
        "tcp-offset-4" "a TCP header of 16 bytes" => eth().ipv4().tcp(40000, 80).syn().doff(4);
        "tcp-offset-6" "a TCP header longer than the packet" =>
            eth().ipv4().tcp(40000, 80).syn().doff(6);
        "tcp-offset-15" "a TCP header far longer than the packet" =>
            eth().ipv4().tcp(40000, 80).syn().doff(15);
        "tcp-offset-15-ipv6" "the same over IPv6" => eth().ipv6().tcp(40000, 80).syn().doff(15);
        "tcp-offset-ack" "an offset that lies counts before the flags" =>
            eth().ipv4().tcp(40000, 80).ack(7).doff(4);
    }
    cases! { v, rejecting(), reject(Rate);
        "tcp-offset-data" "what looks like options is options" =>
            eth().ipv4().tcp(40000, 80).syn().doff(6).data(&[1; 8]);
    }
}

fn options(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "tcp-options-linux" "the options of a Linux client: none comes back" =>
            eth().ipv4().tcp(40000, 80).syn()
                .options(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
        "tcp-options-mss" "a maximum segment size" =>
            eth().ipv4().tcp(40000, 80).syn().options(&[2, 4, 5, 180]);
        "tcp-options-fast-open" "a fast open cookie request" =>
            eth().ipv4().tcp(40000, 80).syn().options(&[34, 2, 1, 1]);
        "tcp-options-md5" "an MD5 signature" =>
            eth().ipv4().tcp(40000, 80).syn()
                .options(&[19, 18, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        "tcp-options-40" "40 bytes of options" =>
            eth().ipv4().tcp(40000, 80).syn().options(&[1; 40]);
        "tcp-options-broken" "an option of length 0 is not looked at" =>
            eth().ipv4().tcp(40000, 80).syn().options(&[8, 0, 0, 0]);
        "tcp-options-ipv6" "the options of a Linux client, IPv6" =>
            eth().ipv6().tcp(40000, 80).syn()
                .options(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    }
    cases! { v, base(), admit(NoLimit);
        "tcp-options-admitted" "the same without a limit" =>
            eth().ipv4().tcp(40000, 80).syn()
                .options(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    }
}

fn data(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "tcp-data-1" "one byte behind the SYN is acknowledged" => syn4().data(&[0x41]);
        "tcp-data-100" "100 bytes behind the SYN" => syn4().data(&[0x41; 100]);
        "tcp-data-fast-open" "fast open: cookie and request" =>
            eth().ipv4().tcp(40000, 80).syn().options(&[34, 10, 1, 2, 3, 4, 5, 6, 7, 8])
                .data(b"GET / HTTP/1.1");
        "tcp-data-1460" "a full segment behind the SYN" => syn4().data(&[0x41; 1460]);
        "tcp-data-ipv6" "data behind the SYN, IPv6" => syn6().data(&[0x41; 100]);
        "tcp-data-odd" "an odd number of bytes, with padding" => syn4().data(&[0x41; 3]).pad(60);
    }
}

fn fields(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "tcp-sequence-max" "the acknowledgement wraps to 0" => syn4().seq(0xffff_ffff);
        "tcp-sequence-0" "a sequence number of 0" => syn4().seq(0);
        "tcp-sequence-data" "the acknowledgement wraps within the data" =>
            syn4().seq(0xffff_fff0).data(&[0x41; 32]);
        "tcp-ack-field" "an acknowledgement number without the flag" =>
            eth().ipv4().tcp(40000, 80).ack_field(0xdead_beef).syn();
        "tcp-checksum-wrong" "a wrong checksum decides nothing" => syn4().sum(0xbeef);
        "tcp-checksum-zero" "no checksum" => syn4().sum(0);
        "tcp-checksum-ipv6" "a wrong checksum over IPv6" => syn6().sum(0xbeef);
        "tcp-window-0" "a window of 0" => syn4().window(0);
        "tcp-urgent" "an urgent pointer" => syn4().urgent(0xffff);
        "tcp-from-port-0" "from port 0" => eth().ipv4().tcp(0, 80).syn();
        "tcp-from-port-65535" "from port 65535" => eth().ipv4().tcp(65535, 80).syn();
        "tcp-same-ports" "from the port of the service" => eth().ipv4().tcp(80, 80).syn();
    }
    cases! { v, rejecting(), pass(NotService);
        "tcp-port-0" "to port 0" => eth().ipv4().tcp(40000, 0).syn();
        "tcp-port-65535" "to port 65535" => eth().ipv4().tcp(40000, 65535).syn();
    }
}
