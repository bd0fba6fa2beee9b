// SPDX-License-Identifier: Apache-2.0 OR MIT
// The simulator's speed model on ns-3, as one would write it there: one event for each SYN, an
// exponential random variable for the arrivals; with the default scheduler, and with the one that is
// fastest here. A worker of `cargo xtask bench` (the protocol: xtask/src/bench/worker.rs).
//
// Poisson 100/s; a token bucket of 80/s and depth 80; a refused SYN comes again after 3, 6, 12, 24
// and 48 s, then its client gives up.

#include "ns3/core-module.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

using namespace ns3;

namespace {

constexpr double kRate = 100.0, kTokens = 80.0, kDepth = 80.0, kSeconds = 10000.0;
constexpr int kGaps = 5;
const Time kGap[kGaps] = {Seconds(3), Seconds(6), Seconds(12), Seconds(24), Seconds(48)};

struct Model
{
    Ptr<ExponentialRandomVariable> distance = CreateObject<ExponentialRandomVariable>();
    double tokens = kDepth, then = 0.0, waited = 0.0;
    uint64_t syns = 0, requests = 0, admitted = 0, abandoned = 0;

    void Arrive()
    {
        if (Simulator::Now().GetSeconds() >= kSeconds)
        {
            return;
        }
        ++requests;
        Syn(Simulator::Now(), 0);
        Simulator::Schedule(Seconds(distance->GetValue()), &Model::Arrive, this);
    }

    void Syn(Time start, int attempt)
    {
        ++syns;
        const double now = Simulator::Now().GetSeconds();
        tokens = std::min(kDepth, tokens + (now - then) * kTokens);
        then = now;
        if (tokens >= 1.0)
        {
            tokens -= 1.0;
            ++admitted;
            waited += now - start.GetSeconds();
        }
        else if (attempt < kGaps)
        {
            Simulator::Schedule(kGap[attempt], &Model::Syn, this, start, attempt + 1);
        }
        else
        {
            ++abandoned;
        }
    }
};

double ThreadNs()
{
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec);
}

double Measure(const std::string& scheduler)
{
    Simulator::SetScheduler(ObjectFactory(scheduler));
    Model model;
    model.distance->SetAttribute("Mean", DoubleValue(1.0 / kRate));
    Simulator::Schedule(Seconds(model.distance->GetValue()), &Model::Arrive, &model);
    const double begun = ThreadNs();
    Simulator::Run();
    const double ns = ThreadNs() - begun;
    Simulator::Destroy();
    std::fprintf(stderr, "ns-3: %.3f attempts, %.4f abandoned, %.2f s\n",
                 double(model.syns) / model.requests, double(model.abandoned) / model.requests,
                 model.waited / model.admitted);
    return ns / model.syns;
}

} // namespace

int main()
{
    std::cout << R"({"subjects": [{"name": "ns3", "about": "the same model on ns-3, per SYN"}, )"
              << R"({"name": "ns3-calendar", "about": "on ns-3 with its calendar queue"}]})"
              << std::endl;
    for (std::string asked; std::getline(std::cin, asked);)
    {
        const bool calendar = asked.find("calendar") != std::string::npos;
        std::cout << "{\"ns\": "
                  << Measure(calendar ? "ns3::CalendarScheduler" : "ns3::MapScheduler") << "}"
                  << std::endl;
    }
    return 0;
}
