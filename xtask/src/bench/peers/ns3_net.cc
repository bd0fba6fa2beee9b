// SPDX-License-Identifier: Apache-2.0 OR MIT
// The reference numbers of ns-3 that the simulator's network is held against
// (sim/tests/net/ns3.rs). Prints CSV. `cargo xtask reference` compiles and runs it.
//
// loss:     an endless transfer over a link of 100 Mbit/s and 100 ms there and back that loses
//           packets at random. Goodput in bit/s, from second 20 to 720.
// shared:   2 and 10 endless transfers through 2 Mbit/s and 42 ms, drop-tail and RED, from second 20
//           to 320: goodput of all in bit/s, share of packets dropped, mean of the packets that wait,
//           Jain's index of the goodputs.
// transfer: 100 segments over 10 Mbit/s and 100 ms, from the SYN to the last byte, in seconds.
//
// TCP as in sim/net: NewReno, no SACK, no timestamps, least time-out 1 s, delayed acknowledgements
// after 2 segments or 200 ms, segments of 1460 bytes. With a least time-out of 200 ms ns-3 sends much
// again that is not lost: it measures each segment, so the variation of a long queue is forgotten.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdio>
#include <string>
#include <vector>

using namespace ns3;

namespace {

constexpr int kRuns = 3;
constexpr double kFrom = 20.0;

struct Case
{
    int flows = 1;
    uint64_t rate = 100000000; // bit/s
    int delayMs = 49;          // of the bottleneck; the other link has 1 ms
    int packets = 1000;
    bool red = false;
    double loss = 0.0;
    int initialWindow = 10;
    uint64_t bytes = 0; // 0: endless
    double until = 720.0;
};

void SetTcp(const Case& c)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpNewReno"));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue("ns3::TcpClassicRecovery"));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::LimitedTransmit", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1460));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(c.initialWindow));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 20));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 20));
}

struct Counts
{
    uint64_t offered = 0, dropped = 0;
};

// One simulation: a server, a router, and a client for each transfer.
struct World
{
    const Case& c;
    NodeContainer server{1}, router{1}, clients;
    Ptr<PointToPointNetDevice> device;
    Ptr<QueueDisc> disc;
    std::vector<Ptr<PacketSink>> sinks;
    double queue = 0.0, looks = 0.0, finished = 0.0;
    std::vector<uint64_t> before;
    Counts countsBefore;
    uint64_t refused = 0; // by the layer above the device, when the device's queue is full

    explicit World(const Case& c) : c(c)
    {
        clients.Create(c.flows);
        InternetStackHelper stack;
        stack.Install(server);
        stack.Install(router);
        stack.Install(clients);
        Bottleneck();
        for (int flow = 0; flow < c.flows; ++flow)
        {
            Transfer(flow);
        }
        Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    }

    void Bottleneck()
    {
        PointToPointHelper link;
        link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(c.rate)));
        link.SetChannelAttribute("Delay", TimeValue(MilliSeconds(c.delayMs)));
        const int packets = c.red ? 1 : c.packets;
        link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize",
                      StringValue(std::to_string(packets) + "p"));
        NetDeviceContainer devices = link.Install(server.Get(0), router.Get(0));
        device = DynamicCast<PointToPointNetDevice>(devices.Get(0));
        if (c.red)
        {
            TrafficControlHelper traffic;
            traffic.SetRootQueueDisc(
                "ns3::RedQueueDisc", "MinTh", DoubleValue(5), "MaxTh", DoubleValue(15), "LInterm",
                DoubleValue(10), "QW", DoubleValue(0.002), "Gentle", BooleanValue(true), "Wait",
                BooleanValue(true), "MeanPktSize", UintegerValue(1000), "LinkBandwidth",
                DataRateValue(DataRate(c.rate)), "MaxSize",
                StringValue(std::to_string(c.packets) + "p"));
            disc = traffic.Install(devices.Get(0)).Get(0);
        }
        Ipv4AddressHelper("10.0.0.0", "255.255.255.0").Assign(devices);
        TrafficControlHelper none;
        none.Uninstall(devices.Get(1));
        if (!c.red)
        {
            none.Uninstall(devices.Get(0));
        }
        server.Get(0)->GetObject<TrafficControlLayer>()->TraceConnectWithoutContext(
            "TcDrop", MakeCallback(&World::Refused, this));
        if (c.loss > 0.0)
        {
            Ptr<RateErrorModel> errors = CreateObject<RateErrorModel>();
            errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
            errors->SetRate(c.loss);
            devices.Get(1)->SetAttribute("ReceiveErrorModel", PointerValue(errors));
        }
        // The way back is fast.
        DynamicCast<PointToPointNetDevice>(devices.Get(1))->SetDataRate(DataRate("8Gbps"));
        devices.Get(1)->GetObject<PointToPointNetDevice>()->GetQueue()->SetMaxSize(
            QueueSize("10000p"));
    }

    void Transfer(int flow)
    {
        PointToPointHelper link;
        link.SetDeviceAttribute("DataRate", StringValue("8Gbps"));
        link.SetChannelAttribute("Delay", StringValue("1ms"));
        link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("10000p"));
        NetDeviceContainer devices = link.Install(router.Get(0), clients.Get(flow));
        const std::string net = "10.1." + std::to_string(flow) + ".0";
        Ipv4InterfaceContainer addresses =
            Ipv4AddressHelper(net.c_str(), "255.255.255.0").Assign(devices);
        TrafficControlHelper().Uninstall(devices);

        InetSocketAddress to(addresses.GetAddress(1), 80);
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 80));
        sinks.push_back(DynamicCast<PacketSink>(sink.Install(clients.Get(flow)).Get(0)));
        BulkSendHelper bulk("ns3::TcpSocketFactory", to);
        bulk.SetAttribute("MaxBytes", UintegerValue(c.bytes));
        bulk.SetAttribute("SendSize", UintegerValue(1460));
        bulk.Install(server).Get(0)->SetStartTime(MilliSeconds(97 * flow));
        sinks.back()->TraceConnectWithoutContext("Rx", MakeCallback(&World::Received, this));
    }

    void Refused(Ptr<const Packet>)
    {
        ++refused;
    }

    void Received(Ptr<const Packet>, const Address&)
    {
        finished = Simulator::Now().GetSeconds();
    }

    Counts Look() const
    {
        if (disc)
        {
            return {disc->GetStats().nTotalReceivedPackets, disc->GetStats().nTotalDroppedPackets};
        }
        const uint64_t dropped = device->GetQueue()->GetTotalDroppedPackets() + refused;
        return {device->GetQueue()->GetTotalReceivedPackets() + dropped, dropped};
    }

    void Begin()
    {
        for (const auto& sink : sinks)
        {
            before.push_back(sink->GetTotalRx());
        }
        countsBefore = Look();
        Sample();
    }

    void Sample()
    {
        queue += device->GetQueue()->GetNPackets() + (disc ? disc->GetNPackets() : 0);
        looks += 1.0;
        Simulator::Schedule(MilliSeconds(10), &World::Sample, this);
    }

    void Run()
    {
        Simulator::Schedule(Seconds(kFrom), &World::Begin, this);
        Simulator::Stop(Seconds(c.until));
        Simulator::Run();
    }

    std::vector<double> Rates() const
    {
        std::vector<double> rates;
        for (size_t i = 0; i < sinks.size(); ++i)
        {
            rates.push_back((sinks[i]->GetTotalRx() - before[i]) * 8.0 / (c.until - kFrom));
        }
        return rates;
    }
};

struct Metrics
{
    double goodput = 0.0, dropped = 0.0, queue = 0.0, fairness = 0.0, time = 0.0;
};

// The mean of several runs.
Metrics Measure(const Case& c)
{
    Metrics m;
    SetTcp(c);
    for (int run = 1; run <= kRuns; ++run)
    {
        RngSeedManager::SetRun(run);
        {
            World world(c);
            world.Run();
            double sum = 0.0, squares = 0.0;
            for (double rate : world.Rates())
            {
                sum += rate;
                squares += rate * rate;
            }
            const Counts now = world.Look();
            m.goodput += sum / kRuns;
            m.fairness += squares > 0.0 ? sum * sum / squares / c.flows / kRuns : 0.0;
            m.dropped += 1.0 * (now.dropped - world.countsBefore.dropped) /
                         std::max<uint64_t>(1, now.offered - world.countsBefore.offered) / kRuns;
            m.queue += world.queue / world.looks / kRuns;
            m.time += world.finished / kRuns;
        }
        Simulator::Destroy();
    }
    return m;
}

} // namespace

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    std::printf("case,x,metric,value\n");
    for (int window : {2, 10})
    {
        Case c;
        c.initialWindow = window;
        c.rate = 10000000;
        c.bytes = 146000;
        c.until = 30.0;
        std::printf("transfer,%d,time,%.4f\n", window, Measure(c).time);
    }
    for (bool red : {false, true})
    {
        for (int flows : {2, 10})
        {
            Case c;
            c.flows = flows;
            c.red = red;
            c.rate = 2000000;
            c.delayMs = 20;
            c.packets = 50;
            c.until = 320.0;
            const Metrics m = Measure(c);
            const char* name = red ? "red" : "drop-tail";
            std::printf("%s,%d,goodput,%.0f\n", name, flows, m.goodput);
            std::printf("%s,%d,dropped,%.5f\n", name, flows, m.dropped);
            std::printf("%s,%d,queue,%.2f\n", name, flows, m.queue);
            std::printf("%s,%d,fairness,%.4f\n", name, flows, m.fairness);
        }
    }
    for (double loss : {0.05, 0.02, 0.01, 0.005, 0.002, 0.001})
    {
        Case c;
        c.loss = loss;
        std::printf("loss,%g,goodput,%.0f\n", loss, Measure(c).goodput);
    }
    return 0;
}
