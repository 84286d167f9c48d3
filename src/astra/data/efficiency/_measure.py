import csv, itertools, os, statistics, sys, time
import torch, torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
dev='cuda'; bf=torch.bfloat16
out=csv.writer(open(os.environ['OUT']+'/rows.csv','w'))
out.writerow('op,dtype,direction,kernel,a,b,c,d,causal,seconds'.split(','))
T0=time.time()
def bench(fn,budget=0.012):
    fn(); fn(); torch.cuda.synchronize()
    s=torch.cuda.Event(True); e=torch.cuda.Event(True)
    s.record(); fn(); e.record(); torch.cuda.synchronize()
    n=max(3,min(60,int(budget/max(s.elapsed_time(e)*1e-3,1e-6))))
    xs=[]
    for _ in range(4):
        s.record()
        for _ in range(n): fn()
        e.record(); torch.cuda.synchronize(); xs.append(s.elapsed_time(e)*1e-3/n)
    return statistics.median(xs)
def graph(fn,n=20):
    fn(); torch.cuda.synchronize()
    st=torch.cuda.Stream(); st.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(st): fn()
    torch.cuda.current_stream().wait_stream(st); torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(n): fn()
    t=bench(g.replay)/n
    del g
    return t
def row(*a): print(*a,sep=',')
def tryrow(head,fn,graphed=False):
    try: t=(graph if graphed else bench)(fn)
    except Exception as x: print('FAIL',head,str(x)[:200]); return
    row(*head,'%.4e'%t)
print(torch.__version__,torch.version.cuda,torch.cuda.get_device_name(),torch.backends.cudnn.version())
os.system('nvidia-smi --query-gpu=driver_version,clocks.max.sm,power.limit --format=csv')
def gemm():
    nk=[(4096,4096),(6144,4096),(12288,4096),(22016,4096),(4096,11008),(28672,4096),(4096,14336),(10240,8192),(8192,8192),(57344,8192),(8192,28672),(5120,5120),(15360,5120),(27648,5120),(5120,13824),(2048,2048),(1024,4096),(3584,4096),(4096,1792),(1280,8192),(8192,1024),(7168,8192),(8192,3584),(2560,7680),(1024,1024),(32000,4096),(128256,4096),(50304,2048),(1536,12288),(12288,1536),(6144,12288),(12288,12288)]
    for m in (1024,2048,4096,8192,16384):
        for n,k in nk:
            small=2*m*n*k<6e10
            x=torch.randn(m,k,device=dev,dtype=bf); w=torch.randn(n,k,device=dev,dtype=bf)*.02; dy=torch.randn(m,n,device=dev,dtype=bf)
            y=torch.empty(m,n,device=dev,dtype=bf); dx=torch.empty(m,k,device=dev,dtype=bf); dw=torch.empty(n,k,device=dev,dtype=bf); g=torch.zeros(n,k,device=dev,dtype=torch.float32)
            tryrow(('gemm','bf16','forward','torch',m,n,k,'',''),lambda:torch.mm(x,w.t(),out=y),small)
            tryrow(('gemm','bf16','dgrad','torch',m,n,k,'',''),lambda:torch.mm(dy,w,out=dx),small)
            tryrow(('gemm','bf16','wgrad','torch bf16 out',m,n,k,'',''),lambda:torch.mm(dy.t(),x,out=dw),small)
            tryrow(('gemm','bf16','wgrad','torch fp32 accumulate',m,n,k,'',''),lambda:torch.ops.aten.addmm.dtype_out(g,dy.t(),x,torch.float32,out=g),small)
            if m>=2048:
                f8=torch.float8_e4m3fn; one=torch.ones((),device=dev)
                x8=x.to(f8); w8=w.to(f8)
                tryrow(('gemm','fp8','forward','torch scaled_mm',m,n,k,'',''),lambda:torch._scaled_mm(x8,w8.t(),scale_a=one,scale_b=one,out_dtype=bf,use_fast_accum=True,out=y),small)
                tryrow(('gemm','fp8','dgrad','torch scaled_mm split',m,n,k,'',''),lambda:torch._scaled_mm(x8,w8.t(),scale_a=one,scale_b=one,out_dtype=bf,use_fast_accum=False,out=y),small)
        print('gemm',m,time.time()-T0,flush=True)
    for m,n,k in itertools.product((2048,8192),(1024,4096,8192),(1024,4096)):
        for name,tf in (('fp32',False),('tf32',True)):
            torch.backends.cuda.matmul.allow_tf32=tf
            x=torch.randn(m,k,device=dev); w=torch.randn(n,k,device=dev); y=torch.empty(m,n,device=dev)
            tryrow(('gemm',name,'forward','torch',m,n,k,'',''),lambda:torch.mm(x,w.t(),out=y))
    torch.backends.cuda.matmul.allow_tf32=False
def attention():
    cs=[(s,max(1,16384//s),2048//d,d) for d in (64,128,256) for s in (512,1024,2048,4096,8192,16384,32768)]
    cs+=[(s,1,h,128) for s in (1024,2048,4096,8192) for h in (4,8,16,32,64)]+[(4096,1,h,64) for h in (4,12,16,32)]
    for (s,b,h,d),causal in itertools.product(cs,(True,False)):
        for name,be in (('flash',SDPBackend.FLASH_ATTENTION),('cudnn',SDPBackend.CUDNN_ATTENTION)):
            if not causal and name=='flash': continue
            try:
                with sdpa_kernel(be):
                    q,k,v=(torch.randn(b,s,h,d,device=dev,dtype=bf).transpose(1,2).requires_grad_() for _ in range(3))
                    do=torch.randn(b,s,h,d,device=dev,dtype=bf).transpose(1,2)
                    with torch.no_grad(): row('attention','bf16','forward',name,s,b,h,d,int(causal),'%.4e'%graph(lambda:F.scaled_dot_product_attention(q,k,v,is_causal=causal),5))
                    o=F.scaled_dot_product_attention(q,k,v,is_causal=causal)
                    row('attention','bf16','backward',name,s,b,h,d,int(causal),'%.4e'%bench(lambda:torch.autograd.grad(o,(q,k,v),do,retain_graph=True),.02))
            except Exception as x: print('FAIL att',s,b,h,d,causal,name,str(x)[:150])
    print('attention',time.time()-T0,flush=True)
def grouped():
    for e,t,(n,k) in itertools.product((1,4,8,16,32,64),(64,128,256,512,1024,2048,4096),((4096,2048),(2048,4096),(14336,4096),(4096,7168),(7168,2048),(1536,2048))):
        if e*t>65536 or e*n*k>2**31: continue
        x=torch.randn(e*t,k,device=dev,dtype=bf); w=torch.randn(e,n,k,device=dev,dtype=bf)*.02; dy=torch.randn(e*t,n,device=dev,dtype=bf)
        offs=(torch.arange(e,device=dev,dtype=torch.int32)+1)*t
        tryrow(('grouped','bf16','forward','torch grouped_mm',e,t,n,k,''),lambda:torch._grouped_mm(x,w.transpose(1,2),offs=offs))
        tryrow(('grouped','bf16','dgrad','torch grouped_mm',e,t,n,k,''),lambda:torch._grouped_mm(dy,w,offs=offs))
        tryrow(('grouped','bf16','wgrad','torch grouped_mm',e,t,n,k,''),lambda:torch._grouped_mm(dy.t(),x,offs=offs))
    print('grouped',time.time()-T0,flush=True)
def memory():
    for p in range(14,31):
        n=2**p//2
        a=torch.randn(n,device=dev,dtype=bf); b=torch.randn(n,device=dev,dtype=bf); c=torch.empty_like(a)
        tryrow(('memory','bf16','','copy',2*2**p,'','','',''),lambda:c.copy_(a),p<26)
        tryrow(('memory','bf16','','add',3*2**p,'','','',''),lambda:torch.add(a,b,out=c),p<26)
        tryrow(('memory','bf16','','silu',2*2**p,'','','',''),lambda:torch.ops.aten.silu.out(a,out=c),p<26)
        if n>=4096:
            x=a.view(-1,4096); w=torch.ones(4096,device=dev,dtype=bf)
            tryrow(('memory','bf16','','layer_norm',2*2**p,'','','',''),lambda:F.layer_norm(x,(4096,),w,w),p<26)
            tryrow(('memory','bf16','','rms_norm',2*2**p,'','','',''),lambda:F.rms_norm(x,(4096,),w),p<26)
    def swiglu(g,u): return F.silu(g)*u
    cs=torch.compile(swiglu,dynamic=True)
    for p in range(16,30,2):
        a=torch.randn(2**p//2,device=dev,dtype=bf); b=torch.randn(2**p//2,device=dev,dtype=bf)
        tryrow(('memory','bf16','','compiled swiglu',3*2**p,'','','',''),lambda:cs(a,b))
    t=torch.zeros(256,device=dev)
    def many():
        for _ in range(200): t.add_(1)
    row('launch','','','eager tiny add','','','','','','%.4e'%(bench(many)/200))
    row('launch','','','graphed tiny add','','','','','','%.4e'%graph(lambda:t.add_(1),200))
    print('memory',time.time()-T0,flush=True)
for f in (memory,):
    try: f()
    except Exception as x: print('FAILED',f.__name__,repr(x)[:400])
