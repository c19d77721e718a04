// A pass for clang that puts poll points at the edges of loops: clang -fpass-plugin=./pass.so. It
// runs behind all optimizations, so loops stay vector code. As #[tailwater::preemptible] of Rust, a
// function counts what its loops execute, and polls when the count is used up; a loop of few
// instructions in all is counted by the loop around it.
//
// A call is counted as CALL instructions. A function without a loop has no poll point.

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/Analysis/ScalarEvolution.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Passes/PassPlugin.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

using namespace llvm;

namespace {

// Instructions between two polls: some hundreds of nanoseconds.
constexpr uint64_t FULL = 1024;
constexpr uint64_t CALL = 32;

// Loops whose edges count, each with the instructions of one turn.
using Counted = SmallVector<std::pair<Loop *, uint64_t>>;

// Adds the loop and those in it to `counted`. Returns what a whole run of it costs the loop around
// it: nothing if it counts by itself.
uint64_t weigh(Loop *loop, LoopInfo &loops, ScalarEvolution &evolution, Counted &counted) {
    const size_t before = counted.size();
    uint64_t turn = 0;
    for (Loop *inner : *loop) turn += weigh(inner, loops, evolution, counted);
    for (BasicBlock *block : loop->blocks()) {
        if (loops.getLoopFor(block) != loop) continue;
        for (Instruction &instruction : *block) turn += isa<CallBase>(instruction) && !isa<IntrinsicInst>(instruction) ? CALL : 1;
    }
    const uint64_t turns = evolution.getSmallConstantMaxTripCount(loop);
    if (turns > 0 && turns * turn <= FULL && counted.size() == before) return turns * turn;
    counted.emplace_back(loop, std::min(turn, FULL));
    return 0;
}

// Calls the poll point as tw_poll() of tailwater.h does.
void poll(IRBuilder<> &at, const Function &function) {
    std::string clobbers = "~{memory},~{cc},~{dirflag},~{fpsr},~{flags},~{st}";
    for (int i = 1; i < 8; i++) clobbers += ",~{st(" + std::to_string(i) + ")}";
    const bool has_512 = function.getFnAttribute("target-features").getValueAsString().contains("+avx512f");
    for (int i = 0; i < (has_512 ? 32 : 16); i++) clobbers += ",~{xmm" + std::to_string(i) + "}";
    for (int i = 0; has_512 && i < 8; i++) clobbers += ",~{k" + std::to_string(i) + "}";
    const char *code = "leaq -128(%rsp), %rsp\n\tcall *tw_poll_keeping_registers@GOTPCREL(%rip)\n\tleaq 128(%rsp), %rsp";
    auto *type = FunctionType::get(at.getVoidTy(), false);
    at.CreateCall(type, InlineAsm::get(type, code, clobbers, true));
}

struct PollPoints : PassInfoMixin<PollPoints> {
    PreservedAnalyses run(Function &function, FunctionAnalysisManager &analyses) {
        auto &loops = analyses.getResult<LoopAnalysis>(function);
        auto &evolution = analyses.getResult<ScalarEvolutionAnalysis>(function);
        Counted counted;
        for (Loop *loop : loops) weigh(loop, loops, evolution, counted);
        if (counted.empty() || function.hasFnAttribute(Attribute::Naked)) return PreservedAnalyses::all();

        IRBuilder<> entry(&*function.getEntryBlock().getFirstInsertionPt());
        AllocaInst *left = entry.CreateAlloca(entry.getInt64Ty());
        entry.CreateStore(entry.getInt64(FULL), left);
        MDNode *unlikely = MDBuilder(function.getContext()).createBranchWeights(1, 1000);
        for (auto [loop, turn] : counted) {
            SmallVector<BasicBlock *> latches;
            loop->getLoopLatches(latches);
            for (BasicBlock *latch : latches) {
                IRBuilder<> edge(latch->getTerminator());
                Value *now = edge.CreateLoad(edge.getInt64Ty(), left);
                edge.CreateStore(edge.CreateSub(now, edge.getInt64(turn)), left);
                Value *is_spent = edge.CreateICmpULT(now, edge.getInt64(turn));
                IRBuilder<> spent(SplitBlockAndInsertIfThen(is_spent, latch->getTerminator(), false, unlikely));
                spent.CreateStore(spent.getInt64(FULL), left);
                poll(spent, function);
            }
        }
        DominatorTree dominators(function);
        PromoteMemToReg({left}, dominators);
        return PreservedAnalyses::none();
    }
    static bool isRequired() { return true; } // without optimization, too
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo() {
    return {LLVM_PLUGIN_API_VERSION, "tailwater-poll", LLVM_VERSION_STRING, [](PassBuilder &builder) {
                builder.registerOptimizerLastEPCallback([](ModulePassManager &passes, auto...) {
                    passes.addPass(createModuleToFunctionPassAdaptor(PollPoints()));
                });
            }};
}
